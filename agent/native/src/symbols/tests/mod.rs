//! Tests on real files, compiled here.

mod corrupt;
mod fixture;
mod inlined;
mod lookup;
mod pack;
mod sources;
