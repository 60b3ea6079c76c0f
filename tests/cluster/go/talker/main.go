// Command talker answers HTTP requests, makes one, or writes a file: what tests of a node need.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "get":
		get(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "write":
		check(os.WriteFile(os.Args[2], []byte("written"), 0o644))
	default:
		serve()
	}
}

func serve() {
	name, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	fmt.Println("talking")
	check(http.ListenAndServe(":8080", nil))
}

func get(url string) {
	client := http.Client{Timeout: 3 * time.Second}
	answer, err := client.Get(url)
	check(err)
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	check(err)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
