//! Tests with real files, which are compiled by the tests.

mod corrupt;
mod fixture;
mod hostile;
mod inlined;
mod lookup;
mod pack;
mod sources;
