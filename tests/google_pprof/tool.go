//go:build tool

// Package pprof pins Google's pprof by go.sum; tests/googlepprof.py builds it.
package pprof

import _ "github.com/google/pprof"
