module octavo.dev/tests/talker

go 1.24.0
