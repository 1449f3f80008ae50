//go:build tool

// Package pprof pins the version of Google's pprof, which tests/googlepprof.py builds.
package pprof

import _ "github.com/google/pprof"
