// Command cluster is etcd and all of Kubernetes in one binary. It becomes the component whose
// name it is called by, so that one link step and one file serve seven processes.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kube-proxy":              proxy.NewProxyCommand,
	}
	name := filepath.Base(os.Args[0])
	switch command, known := commands[name]; {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case name == "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case known:
		os.Exit(cli.Run(command()))
	default:
		fmt.Fprintf(os.Stderr, "no component is called %q\n", name)
		os.Exit(2)
	}
}
