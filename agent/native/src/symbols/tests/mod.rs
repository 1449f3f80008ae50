//! Tests on real files, compiled here.

mod corrupt;
mod fixture;
mod hostile;
mod inlined;
mod lookup;
mod pack;
mod sources;
