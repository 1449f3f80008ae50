//! The CRC32 of `.gnu_debuglink`, which is the same as zlib's, computed eight bytes at a time.

const POLYNOMIAL: u32 = 0xedb8_8320;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut row = 1;
    while row < 8 {
        let mut byte = 0;
        while byte < 256 {
            let shorter = tables[row - 1][byte];
            tables[row][byte] = (shorter >> 8) ^ tables[0][(shorter & 0xff) as usize];
            byte += 1;
        }
        row += 1;
    }
    tables
}

/// An incremental CRC32.
pub(super) struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Crc {
    /// Add the next bytes.
    pub fn add(&mut self, data: &[u8]) {
        let (chunks, rest) = data.as_chunks::<8>();
        let crc = chunks.iter().fold(self.0, |crc, chunk| {
            let word = u64::from_le_bytes(*chunk) ^ u64::from(crc);
            let bytes = word.to_le_bytes();
            (0..8).fold(0, |sum, i| sum ^ TABLES[7 - i][usize::from(bytes[i])])
        });
        let step = |crc: u32, byte: &u8| (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)];
        self.0 = rest.iter().fold(crc, step);
    }

    /// Return the CRC32 of all bytes added so far.
    pub fn value(&self) -> u32 {
        !self.0
    }
}

/// Compute the CRC32 of `data`.
pub(super) fn crc32(data: &[u8]) -> u32 {
    let mut crc = Crc::default();
    crc.add(data);
    crc.value()
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn incremental_checksum_equals_that_of_the_whole() {
        let mut crc = super::Crc::default();
        for piece in [&b"123"[..], b"", b"45678", b"9"] {
            crc.add(piece);
        }
        assert_eq!(crc.value(), 0xcbf4_3926);
    }

    #[test]
    fn matches_published_test_vectors() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }
}
