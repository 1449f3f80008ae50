//! The server's keywords, as data in keywords.txt.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

/// The version whose keywords apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// MySQL 8.0 and older, and MariaDB.
    Mysql8,
    /// MySQL versions after 8.0.
    Mysql9,
}

/// Keywords, and the text that the server prints for each.
type Table = FxHashMap<&'static str, &'static str>;

#[derive(Default)]
struct Tables {
    words: Table,
    /// Words that are keywords only if a parenthesis follows directly.
    functions: Table,
    hints: Table,
}

/// Maximum length of a keyword in bytes.
const MAX_LENGTH: usize = 40;

impl Words {
    fn tables(self) -> &'static Tables {
        static TABLES: OnceLock<[Tables; 2]> = OnceLock::new();
        let both = TABLES.get_or_init(|| parse(include_str!("keywords.txt")));
        &both[usize::from(self == Self::Mysql9)]
    }

    /// Return the text that the server prints for a word, if it is a keyword.
    pub fn find(self, word: &[u8], before_parenthesis: bool) -> Option<&'static str> {
        let tables = self.tables();
        let mut buffer = [0; MAX_LENGTH];
        let word = upper_case(word, &mut buffer)?;
        let function = if before_parenthesis { tables.functions.get(word) } else { None };
        tables.words.get(word).or(function).copied()
    }

    /// Return the text that the server prints for a word in a hint comment, if it is a hint's keyword.
    pub fn find_hint(self, word: &[u8]) -> Option<&'static str> {
        let mut buffer = [0; MAX_LENGTH];
        self.tables().hints.get(upper_case(word, &mut buffer)?).copied()
    }
}

/// Return whether `name` is the name of a character set. If it is, `_name` before a string is a character set
/// introducer.
pub fn is_character_set(name: &[u8]) -> bool {
    let mut buffer = [0; MAX_LENGTH];
    upper_case(name, &mut buffer).is_some_and(|name| CHARACTER_SETS.contains(&name))
}

fn upper_case<'a>(word: &[u8], buffer: &'a mut [u8; MAX_LENGTH]) -> Option<&'a str> {
    let copy = buffer.get_mut(..word.len())?;
    copy.copy_from_slice(word);
    copy.make_ascii_uppercase();
    std::str::from_utf8(copy).ok()
}

/// Parse keywords.txt into the tables of both versions.
fn parse(text: &'static str) -> [Tables; 2] {
    let mut both = [Tables::default(), Tables::default()];
    let mut section = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            continue;
        }
        let (kind, version) = section.split_once(' ').unwrap_or((section, "8 9"));
        for (table, number) in both.iter_mut().zip(["8", "9"]) {
            if !version.contains(number) {
                continue;
            }
            let table = match kind {
                "functions" => &mut table.functions,
                "hints" => &mut table.hints,
                _ => &mut table.words,
            };
            table
                .extend(line.split_whitespace().map(|entry| entry.split_once('=').unwrap_or((entry, entry))));
        }
    }
    both
}

const CHARACTER_SETS: [&str; 43] = [
    "ARMSCII8", "ASCII", "BIG5", "BINARY", "CP1250", "CP1251", "CP1256", "CP1257", "CP850", "CP852", "CP866",
    "CP932", "DEC8", "EUCJPMS", "EUCKR", "FILENAME", "GB18030", "GB2312", "GBK", "GEOSTD8", "GREEK",
    "HEBREW", "HP8", "KEYBCS2", "KOI8R", "KOI8U", "LATIN1", "LATIN2", "LATIN5", "LATIN7", "MACCE",
    "MACROMAN", "SJIS", "SWE7", "TIS620", "UCS2", "UJIS", "UTF16", "UTF16LE", "UTF32", "UTF8", "UTF8MB3",
    "UTF8MB4",
];
