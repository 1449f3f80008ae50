//! Writes, checks and merges the files of the history.

use std::fs::{File, OpenOptions, Permissions};
use std::io::BufWriter;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::DataType;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};

use crate::history::footer::is_sound;
use crate::history::pages::Budget;
use crate::history::schema::parsed;
use crate::history::{Error, Result};

/// The mode of all files: readable by the group.
const MODE: u32 = 0o640;
const ZSTD_LEVEL: i32 = 3;
/// Maximum size in bytes of a file to read. The samples of 1,000 busy threads in one hour take about 12 MB
/// (docs/history.md).
const MOST_BYTES: u64 = 4 << 30;
/// Maximum size in bytes of a file's footer.
const MOST_FOOTER_BYTES: u64 = 64 << 20;
const FOOTER_TAIL: u64 = 8;

type Output = BufWriter<File>;

/// Write a file with one row group, and sync it to disk. An existing file is overwritten.
pub fn write(
    path: &Path,
    message: &str,
    columns: impl FnOnce(&mut SerializedRowGroupWriter<'_, Output>) -> Result<()>,
) -> Result<()> {
    let mut writer = create(path, message)?;
    let mut group = writer.next_row_group()?;
    columns(&mut group)?;
    group.close()?;
    finish(writer)
}

/// Write the next column of a row group.
pub fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Output>,
    values: &[T::T],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
) -> Result<()> {
    let missing = || Error::Damaged("the schema has fewer columns".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, definition, repetition)?;
    column.close()?;
    Ok(())
}

/// Copy the row groups of all inputs to one file without decoding them. Fail if `open` rejects an input.
pub fn merge(inputs: &[impl AsRef<Path>], output: &Path, message: &str) -> Result<()> {
    let mut writer = create(output, message)?;
    for path in inputs {
        let (file, metadata) = open(path.as_ref(), message)?;
        for group in metadata.row_groups() {
            let mut copy = writer.next_row_group()?;
            for column in group.columns() {
                let close = ColumnCloseResult {
                    bytes_written: column.compressed_size().unsigned_abs(),
                    rows_written: group.num_rows().unsigned_abs(),
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                copy.append_column(&file, close)?;
            }
            copy.close()?;
        }
    }
    finish(writer)
}

/// Return the number of rows of a file. Fail as `open_checked` does.
pub fn check(path: &Path, message: &str) -> Result<u64> {
    Ok(open_checked(path, message)?.1)
}

/// Open a file for reading, and return it with its number of rows. Fail as `open` does, or if the sizes in its page
/// headers exceed the [`Budget`].
pub fn open_checked(path: &Path, message: &str) -> Result<(File, u64)> {
    let (file, metadata) = open(path, message)?;
    let mut budget = Budget::of_file(file.metadata()?.len());
    for group in metadata.row_groups() {
        budget.spend(&file, group)?;
    }
    Ok((file, metadata.file_metadata().num_rows().unsigned_abs()))
}

/// Open a file for reading, and return it with its metadata. Fail if the file is not regular or is too large, if
/// its footer is invalid, or if its columns are not those of `message`.
pub fn open(path: &Path, message: &str) -> Result<(File, ParquetMetaData)> {
    // A FIFO must not block the reader, and a symbolic link could point to another user's file.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(Error::Damaged("not a regular file, or too large".to_owned()));
    }
    check_footer(&file, about.len())?;
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file)?;
    // Compare the columns, but not the name of the schema, which other Parquet writers choose differently.
    let expected = parsed(message);
    if metadata.file_metadata().schema().get_fields() != expected.get_fields() {
        return Err(Error::Damaged("not a file of this history: it has other columns".to_owned()));
    }
    Ok((file, metadata))
}

/// Fail if the footer is malformed, or so large that the Parquet reader would allocate too much memory.
fn check_footer(file: &File, bytes: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;

    let mut tail = [0; FOOTER_TAIL as usize];
    let truncated = || Error::Damaged("truncated file".to_owned());
    file.read_exact_at(&mut tail, bytes.checked_sub(FOOTER_TAIL).ok_or_else(truncated)?)?;
    let [a, b, c, d, ..] = tail;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let start = bytes.checked_sub(FOOTER_TAIL + length).filter(|_| length <= MOST_FOOTER_BYTES);
    let start = start.ok_or_else(|| Error::Damaged("the footer is too large".to_owned()))?;
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, start)?;
    if is_sound(&footer) { Ok(()) } else { Err(Error::Damaged("the footer is malformed".to_owned())) }
}

fn create(path: &Path, message: &str) -> Result<SerializedFileWriter<Output>> {
    let options = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    options.set_permissions(Permissions::from_mode(MODE))?; // regardless of the umask
    let level = ZstdLevel::try_new(ZSTD_LEVEL)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_created_by("innoscope".to_owned())
        .build();
    Ok(SerializedFileWriter::new(BufWriter::new(options), parsed(message), Arc::new(properties))?)
}

fn finish(writer: SerializedFileWriter<Output>) -> Result<()> {
    let file = writer.into_inner()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(())
}
