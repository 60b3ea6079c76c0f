module octavo.dev/tests/pause

go 1.24.0
