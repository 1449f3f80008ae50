//! Reads another process's memory without stopping it.

use std::io::{self, IoSliceMut};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::error::{Error, Kind, Result};

const PAGE: usize = 4096;
/// Maximum number of memory ranges in one process_vm_readv call (UIO_MAXIOV).
const IOV_MAX: usize = 1024;

/// Read exactly `size` bytes at `address`.
///
/// Errors: `Gone`, `Rights` (reading another user's memory needs CAP_SYS_PTRACE), `Internal` for addresses
/// that are not mapped.
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

/// Read `size` bytes from `address`, or fewer if the mapping ends earlier.
pub fn read_some(pid: u32, address: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let pieces = split_pages(address, size);
    let mut filled = 0;
    for batch in pieces.chunks(IOV_MAX) {
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

/// Read many `(address, size)` ranges, up to 1,024 per system call. The result for a range that is not mapped is
/// None. The kernel copies one range after another, so the values are not from the same instant.
///
/// Errors: `Gone`, `Rights`.
pub fn read_many(pid: u32, places: &[(u64, usize)]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut found = Vec::with_capacity(places.len());
    visit_many(pid, places, |bytes| found.push(bytes.map(<[u8]>::to_vec)))?;
    Ok(found)
}

/// Read the little-endian number of at most eight bytes in each range; 0 for a range that is not mapped.
///
/// Errors: `Gone`, `Rights`.
pub fn read_numbers(pid: u32, places: &[(u64, usize)]) -> Result<Vec<u64>> {
    let mut found = Vec::with_capacity(places.len());
    visit_many(pid, places, |bytes| found.push(bytes.map_or(0, number)))?;
    Ok(found)
}

/// Return a little-endian number of at most eight bytes.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Call `visit` with the bytes of each range, in order. The bytes are overwritten afterwards.
///
/// Errors: `Gone`, `Rights`.
pub fn visit_many(pid: u32, places: &[(u64, usize)], mut visit: impl FnMut(Option<&[u8]>)) -> Result<()> {
    let mut visited = 0;
    while let Some(batch) = places.get(visited..).filter(|rest| !rest.is_empty()) {
        let batch = &batch[..batch.len().min(IOV_MAX)];
        let whole = visit_batch(pid, batch, &mut visit)?;
        visited += whole;
        if whole < batch.len() {
            visit(None); // the kernel stopped at this range, which is not mapped
            visited += 1;
        }
    }
    Ok(())
}

/// Visit each completely read range. Return the number of these ranges.
fn visit_batch(pid: u32, batch: &[(u64, usize)], visit: &mut impl FnMut(Option<&[u8]>)) -> Result<usize> {
    let mut bytes = vec![0; batch.iter().map(|(_, size)| size).sum()];
    let remote: Vec<_> =
        batch.iter().map(|(address, size)| RemoteIoVec { base: *address as usize, len: *size }).collect();
    let count = match process_vm_readv(Pid::from_raw(pid as i32), &mut [IoSliceMut::new(&mut bytes)], &remote)
    {
        Ok(count) => count,
        Err(Errno::EFAULT) => 0,
        Err(error) => {
            let doing = format!("reading memory of process {pid}");
            return Err(Error::from_os(&error.into(), &doing, Kind::Internal));
        }
    };
    let mut rest = &bytes[..count];
    let mut visited = 0;
    for (_, size) in batch {
        let Some((own, after)) = rest.split_at_checked(*size) else { break };
        visit(Some(own));
        (rest, visited) = (after, visited + 1);
    }
    // Statements contain literals, which must not remain in freed memory. black_box keeps the compiler from
    // omitting the write.
    bytes.fill(0);
    std::hint::black_box(&bytes);
    Ok(visited)
}

/// Split a range at page boundaries. The kernel then returns all pages before the end of the mapping, instead
/// of an error.
fn split_pages(address: u64, bytes: usize) -> Vec<RemoteIoVec> {
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
    fn reads_many_ranges_around_an_unmapped_one() {
        let data: Vec<u64> = (0..3000).collect();
        let mut places: Vec<_> = data.iter().map(|value| (std::ptr::from_ref(value) as u64, 8)).collect();
        places.insert(1500, (0x10, 8));
        let read = read_many(std::process::id(), &places).expect("own memory");
        assert_eq!(read.len(), 3001);
        assert_eq!(read[1500], None);
        let values = read.into_iter().flatten();
        let values: Vec<u64> =
            values.filter_map(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?))).collect();
        assert_eq!(values, data);
        let numbers = read_numbers(std::process::id(), &places).expect("own memory");
        assert_eq!((numbers[1499], numbers[1500], numbers[1501]), (1499, 0, 1500));
        assert_eq!(read_many(u32::MAX >> 1, &[(0x1000, 8)]).unwrap_err().kind, Kind::Gone);
    }

    #[test]
    fn distinguishes_an_ended_process_from_an_unmapped_address() {
        assert_eq!(read(u32::MAX >> 1, 0x1000, 8).unwrap_err().kind, Kind::Gone);
        assert_eq!(read(std::process::id(), 0x10, 8).unwrap_err().kind, Kind::Internal);
    }
}
