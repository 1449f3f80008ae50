//! Tests of symbol resolution, on programs that the tests compile.

mod corrupt;
mod fixture;
mod hostile;
mod inlined;
mod lookup;
mod pack;
mod sources;
