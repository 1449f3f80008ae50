//! Reading another process's memory without stopping it.

use std::io::{self, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::error::{Error, Kind, Result};

const PAGE: usize = 4096;

/// Exactly `size` bytes at `address`.
///
/// Errors: `Gone`, `Rights` (another user's memory needs CAP_SYS_PTRACE), `Internal` for addresses that are
/// not mapped.
pub fn read(pid: u32, address: u64, size: usize) -> Result<Vec<u8>> {
    let bytes = read_some(pid, address, size).map_err(|error| {
        Error::from_os(
            &error,
            &format!("reading {size} bytes at {address:#x} of process {pid}"),
            Kind::Internal,
        )
    })?;
    if bytes.len() < size {
        let detail =
            format!("only {} of {size} bytes at {address:#x} of process {pid} are mapped", bytes.len());
        return Err(Error::new(Kind::Internal, detail));
    }
    Ok(bytes)
}

/// Up to `size` bytes from `address` to the end of what is mapped.
pub fn read_some(pid: u32, address: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let pieces = page_wise(address, size);
    let mut filled = 0;
    // The kernel takes at most IOV_MAX (1024) pieces a call.
    for batch in pieces.chunks(1024) {
        let wanted: usize = batch.iter().map(|piece| piece.len).sum();
        let target = &mut bytes[filled..filled + wanted];
        match process_vm_readv(Pid::from_raw(pid as i32), &mut [IoSliceMut::new(target)], batch) {
            Ok(count) => {
                filled += count;
                if count < wanted {
                    break;
                }
            }
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// One piece a page: a read that meets the mapping's end then keeps what came before it.
fn page_wise(address: u64, bytes: usize) -> Vec<RemoteIoVec> {
    let mut pieces = Vec::with_capacity(bytes / PAGE + 2);
    let mut base = address as usize;
    let end = base.saturating_add(bytes);
    while base < end {
        let next = ((base / PAGE) + 1).saturating_mul(PAGE).min(end);
        pieces.push(RemoteIoVec { base, len: next - base });
        base = next;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_own_memory_across_pages() {
        let data: Vec<u8> = (0..20_000_u32).map(|value| value as u8).collect();
        let read = read(std::process::id(), data.as_ptr() as u64, data.len()).expect("own memory");
        assert_eq!(read, data);
    }

    #[test]
    fn says_gone_and_unmapped_apart() {
        assert_eq!(read(u32::MAX >> 1, 0x1000, 8).unwrap_err().kind, Kind::Gone);
        assert_eq!(read(std::process::id(), 0x10, 8).unwrap_err().kind, Kind::Internal);
    }
}
