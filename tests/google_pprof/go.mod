module innoscope/tests/pprof

go 1.19

require github.com/google/pprof v0.0.0-20230705174524-200ffdc848b8

require (
	github.com/chzyer/readline v1.5.1 // indirect
	github.com/ianlancetaylor/demangle v0.0.0-20230524184225-eabc099b10ab // indirect
	golang.org/x/sys v0.1.0 // indirect
)
