//! The result of decoding a call instruction.

/// The instruction before a return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A call to the function at this address.
    Direct(u64),
    /// A call through a register or a pointer in memory.
    Indirect,
}
