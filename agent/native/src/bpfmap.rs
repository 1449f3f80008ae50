//! Reads and writes BPF maps by descriptor.

use std::io;
use std::os::fd::RawFd;

/// A BPF map whose values consist of 64-bit words. Reading a per-CPU map returns the sums over all CPUs.
#[derive(Debug, Clone, Copy)]
pub struct Map {
    /// The map's descriptor, which the caller keeps open.
    pub descriptor: RawFd,
    /// Size of a key in bytes.
    pub key_bytes: usize,
    /// Number of 64-bit words in a value.
    pub words: usize,
    /// True if there is a value for each CPU.
    pub per_cpu: bool,
}

impl Map {
    /// Read the values of keys 0 to `entries` - 1 of an array.
    pub fn array(self, entries: u32) -> io::Result<Vec<Vec<u64>>> {
        self.lookup_all(entries).or_else(|_| {
            let mut buffer = self.buffer()?;
            (0..entries).map(|key| self.lookup(&key.to_ne_bytes(), &mut buffer)).collect()
        })
    }

    /// Read all elements of an array map with one batch lookup, which Linux before 5.13 does not support for
    /// per-CPU maps.
    fn lookup_all(self, entries: u32) -> io::Result<Vec<Vec<u64>>> {
        let words = self.copies()? * self.words;
        let mut keys = vec![0_u32; entries as usize];
        let mut values = vec![0_u64; entries as usize * words];
        let mut next = 0_u32;
        let mut count = entries;
        // SAFETY: `keys` and `values` have room for `count` entries (in a per-CPU map, with one value per
        // CPU), and `next` has room for the position of the next batch. The other two pointers may be null.
        check(unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.descriptor,
                std::ptr::null_mut(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        })?;
        if !keys.iter().copied().eq(0..count) || count != entries {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(values.chunks_exact(words.max(1)).map(|copies| self.sums(copies)).collect())
    }

    /// Read all keys and values of a hash map. Entries may be missed if another program deletes entries
    /// concurrently.
    pub fn items(self) -> io::Result<Vec<(Vec<u8>, Vec<u64>)>> {
        let mut buffer = self.buffer()?;
        let mut items = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        while let Some(key) = self.next_key(last.as_deref())? {
            match self.lookup(&key, &mut buffer) {
                Ok(value) => items.push((key.clone(), value)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            last = Some(key);
        }
        Ok(items)
    }

    /// Set the value of a key. Per-CPU maps are not supported.
    pub fn update(self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check_key(key)?;
        // SAFETY: the key has the map's key size, which is checked above. The caller passes a value of the
        // map's value size.
        check(unsafe {
            libbpf_sys::bpf_map_update_elem(self.descriptor, key.as_ptr().cast(), value.as_ptr().cast(), 0)
        })
    }

    /// Delete a key from a hash map. A missing key is not an error.
    pub fn delete(self, key: &[u8]) -> io::Result<()> {
        self.check_key(key)?;
        // SAFETY: the key has the map's key size, which is checked above.
        match check(unsafe { libbpf_sys::bpf_map_delete_elem(self.descriptor, key.as_ptr().cast()) }) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn check_key(self, key: &[u8]) -> io::Result<()> {
        if key.len() == self.key_bytes {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("key of {} bytes for a map with keys of {} bytes", key.len(), self.key_bytes),
        ))
    }

    fn copies(self) -> io::Result<usize> {
        if self.per_cpu { libbpf_rs::num_possible_cpus().map_err(io::Error::other) } else { Ok(1) }
    }

    fn buffer(self) -> io::Result<Vec<u64>> {
        Ok(vec![0; self.copies()? * self.words])
    }

    fn sums(self, copies: &[u64]) -> Vec<u64> {
        let mut sums = vec![0_u64; self.words];
        for copy in copies.chunks_exact(self.words) {
            for (sum, word) in sums.iter_mut().zip(copy) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sums
    }

    fn lookup(self, key: &[u8], buffer: &mut [u64]) -> io::Result<Vec<u64>> {
        // SAFETY: the callers pass a key of the map's key size and a buffer with room for all copies of the
        // value.
        check(unsafe {
            libbpf_sys::bpf_map_lookup_elem(self.descriptor, key.as_ptr().cast(), buffer.as_mut_ptr().cast())
        })?;
        Ok(self.sums(buffer))
    }

    fn next_key(self, last: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        let mut next = vec![0; self.key_bytes];
        let last = last.map_or(std::ptr::null(), <[u8]>::as_ptr);
        // SAFETY: `next` has the map's key size. `last` has the same size, or is null to request the first
        // key.
        match check(unsafe {
            libbpf_sys::bpf_map_get_next_key(self.descriptor, last.cast(), next.as_mut_ptr().cast())
        }) {
            Ok(()) => Ok(Some(next)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Convert a result of libbpf, which is -errno on failure, to a `Result`.
fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}
