//! Tests that compile programs and read the resulting files.

mod corrupt;
mod fixture;
mod hostile;
mod inlined;
mod lookup;
mod pack;
mod sources;
