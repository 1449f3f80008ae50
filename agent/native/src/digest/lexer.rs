//! Splits a statement into the tokens that the server's lexer finds (`lex_one_token`, sql/sql_lex.cc in MySQL
//! 8.0).
//!
//! Each byte is read a bounded number of times, and nothing is recursive. Where servers disagree on the end of a
//! literal, and it is not certain how this server reads it, the lexer skips the rest of the statement.

// The flags of a lexer are independent of each other.
#![allow(clippy::struct_excessive_bools)]

mod comments;
mod hints;
mod numbers;

use super::{Context, keywords};
use hints::Hint;

/// The kind of a token. Symbols and keywords contain the text that the server prints in digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An operator or a single character.
    Symbol(&'static str),
    /// A keyword, a hint's keyword or a character set introducer.
    Keyword(&'static str),
    /// An identifier without quotes.
    Name,
    /// An identifier in backticks.
    QuotedName,
    /// An identifier in a hint, with or without backticks, that `@` follows: `table@query_block`.
    NameBeforeAt,
    /// A number, or a hexadecimal or binary literal.
    Number,
    /// A string, a placeholder, the name of a user variable or of a host, or text that may be any of these.
    Value,
}

/// A token and the bytes of the statement that it covers.
#[derive(Clone, Copy)]
pub struct Lexeme {
    /// The kind of the token.
    pub kind: Kind,
    /// Offset of its first byte.
    pub start: usize,
    /// Offset after its last byte.
    pub end: usize,
}

/// The state after the last token, which determines how the next token is read.
#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Start,
    /// The dot between two identifiers.
    Dot,
    /// An identifier after a dot, even if it is a keyword or begins with a digit.
    Name,
    /// The host after `user@`, or the name of a user variable after its `@`.
    Host,
    /// The second `@` of a system variable.
    SecondAt,
    /// The name or scope of a system variable.
    Variable,
    Hint,
}

/// An iterator over the tokens of a statement.
pub struct Lexer<'a> {
    text: &'a [u8],
    context: Context,
    /// True if it is not certain how the server reads this statement.
    unsure: bool,
    at: usize,
    /// True if the statement has further tokens, but it is not certain where they begin.
    pub cut: bool,
    /// True if the statement ends within a string, a quoted name or a comment, or if this depends on which
    /// comments the server executes. Valid once all tokens have been read.
    pub open: bool,
    state: State,
    /// True if the last token was a keyword that a hint may follow.
    hintable: bool,
    /// True inside a `/*! … */` that is executed.
    in_comment: bool,
    hint: Hint,
}

impl<'a> Lexer<'a> {
    /// Return an iterator over the tokens of `text`.
    pub fn new(text: &'a [u8], context: Context) -> Self {
        Self {
            text,
            context,
            unsure: !context.certain,
            at: 0,
            cut: false,
            open: false,
            state: State::Start,
            hintable: false,
            in_comment: false,
            hint: Hint::default(),
        }
    }

    /// Return the byte at this distance, or 0 after the end.
    fn peek(&self, distance: usize) -> u8 {
        self.text.get(self.at + distance).copied().unwrap_or(0)
    }

    /// Return the unread part of the statement. `at` may be one byte beyond the end of the statement.
    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip(&mut self, belongs: fn(u8) -> bool) {
        while self.at < self.text.len() && belongs(self.text[self.at]) {
            self.at += 1;
        }
    }

    /// Skip past the next `ending`, or to the end of the statement if there is none.
    fn skip_after(&mut self, ending: &[u8]) {
        let rest = self.rest();
        let found = rest.windows(ending.len()).position(|window| window == ending);
        self.open |= found.is_none();
        self.at = found.map_or(self.text.len(), |position| self.at + position + ending.len());
    }

    /// Read the token that begins with `first`; `at` is after that byte. Return None for a comment or a control
    /// character.
    fn token(&mut self, first: u8) -> Option<Kind> {
        let start = self.at - 1;
        let hintable = std::mem::take(&mut self.hintable);
        let next = self.peek(0);
        Some(match first {
            b'\'' | b'"' => self.string(first),
            b'`' => self.quoted_name(),
            b'0'..=b'9' => self.number_or_name(start),
            b'.' if next.is_ascii_digit() => self.fraction(),
            b'.' => {
                self.state = if is_name(next) { State::Name } else { State::Start };
                Kind::Symbol(".")
            }
            b'@' => {
                self.state = match next {
                    b'\'' | b'"' | b'`' => State::Start,
                    b'@' => State::SecondAt,
                    _ => State::Host,
                };
                Kind::Symbol("@")
            }
            b'?' => Kind::Value,
            b'#' => return self.line_comment(),
            b'-' if next == b'-' && is_space_or_control(self.peek(1)) => return self.line_comment(),
            // In some character sets, spaces and control characters are among the non-ASCII bytes.
            b'-' if next == b'-' && !self.peek(1).is_ascii() && self.unsure => self.end(),
            b'/' if next == b'*' => return self.comment(start, hintable),
            b'*' if next == b'/' && self.in_comment => {
                self.at += 1;
                self.in_comment = false;
                return None;
            }
            _ if is_name(first) => self.word(start),
            _ => return self.symbol(start),
        })
    }

    fn symbol(&mut self, start: usize) -> Option<Kind> {
        let rest = &self.text[start..];
        let text = OPERATORS.iter().find(|operator| rest.starts_with(operator.as_bytes()));
        if let Some(text) = text {
            self.at = start + text.len();
            return Some(Kind::Symbol(if *text == "<>" { "!=" } else { text }));
        }
        let position = CHARACTERS.bytes().position(|character| character == rest[0])?;
        Some(Kind::Symbol(&CHARACTERS[position..=position]))
    }

    /// Skip the rest of the statement, and return a token that stands for it.
    fn end(&mut self) -> Kind {
        self.cut = true;
        self.unclosed()
    }

    /// Skip the rest of the statement, which is an unterminated literal, quoted name or comment.
    fn unclosed(&mut self) -> Kind {
        self.open = true;
        self.at = self.text.len();
        Kind::Value
    }

    /// Read a string; `at` is after its first quote.
    ///
    /// Whether a backslash escapes the quote depends on the SQL mode (NO_BACKSLASH_ESCAPES, and for `"…"`
    /// ANSI_QUOTES), and on the character set, in which the backslash may be the second byte of a character.
    fn string(&mut self, quote: u8) -> Kind {
        while self.at < self.text.len() {
            let byte = self.text[self.at];
            self.at += 1;
            if byte == b'\\' {
                let before_quote = self.peek(0) == quote || self.peek(0) == b'\\' && self.peek(1) == quote;
                if before_quote && self.unsure {
                    return self.end();
                }
                self.at += 1;
            } else if byte == quote {
                if self.peek(0) != quote {
                    return Kind::Value;
                }
                self.at += 1;
            }
        }
        self.unclosed()
    }

    fn quoted_name(&mut self) -> Kind {
        while self.at < self.text.len() {
            self.skip(|byte| byte != b'`');
            self.at += 1;
            if self.peek(0) != b'`' && self.at <= self.text.len() {
                return Kind::QuotedName;
            }
            self.at += 1;
        }
        self.unclosed()
    }

    fn word(&mut self, start: usize) -> Kind {
        let first = self.text[start];
        if self.peek(0) == b'\'' && matches!(first, b'n' | b'N') {
            self.at += 1;
            return self.string(b'\'');
        }
        if matches!(self.peek(0), b'\'' | b'"') && matches!(first, b'q' | b'Q') && self.unsure {
            return self.end(); // q'[…]' in other dialects
        }
        if self.peek(0) == b'\'' && matches!(first, b'x' | b'X' | b'b' | b'B') {
            self.at += 1;
            return self.bits();
        }
        if first == b'$'
            && let Some(tag) = self.tag(start)
        {
            // MySQL 9 reads `$tag$ … $tag$` as a string, which is the last token of a CREATE FUNCTION statement.
            // Older versions read an identifier.
            self.at = start + tag.len();
            self.skip_after(tag);
            let is_complete = !self.open && self.rest().iter().all(|&byte| is_space(byte));
            let kind = self.end();
            self.open = !is_complete;
            return kind;
        }
        self.skip(is_name);
        let word = &self.text[start..self.at];
        if self.peek(0) == b'`' && !self.text[self.at - 1].is_ascii() && self.unsure {
            return self.end(); // the backtick may be the second byte of a character
        }
        if self.peek(0) == b'.' && is_name(self.peek(1)) {
            self.state = State::Dot;
            return Kind::Name;
        }
        if let Some(keyword) = self.context.words.find(word, self.peek(0) == b'(') {
            self.hintable = HINTABLE.contains(&keyword);
            return Kind::Keyword(keyword);
        }
        if first == b'_' && keywords::is_character_set(&word[1..]) {
            return Kind::Keyword("(_charset)");
        }
        Kind::Name
    }

    /// Return the `$tag$` that begins at `start`, with only identifier characters between the two `$`.
    fn tag(&self, start: usize) -> Option<&'a [u8]> {
        let word = &self.text[start..];
        let length = word.iter().skip(1).position(|&byte| byte == b'$' || !is_name(byte))? + 2;
        word.get(..length).filter(|tag| tag.ends_with(b"$"))
    }

    fn variable(&mut self) -> Kind {
        let start = self.at;
        self.skip(is_name);
        if self.peek(0) == b'.' {
            self.state = if is_name(self.peek(1)) { State::Dot } else { State::Start };
        }
        match self.context.words.find(&self.text[start..self.at], false) {
            Some(keyword) => Kind::Keyword(keyword),
            None => Kind::Name,
        }
    }
}

impl Iterator for Lexer<'_> {
    type Item = Lexeme;

    fn next(&mut self) -> Option<Lexeme> {
        loop {
            let state = std::mem::take(&mut self.state);
            if matches!(state, State::Start | State::Hint) {
                self.skip(is_space);
            }
            let start = self.at;
            let Some(&first) = self.text.get(start) else {
                self.open |= self.in_comment || matches!(state, State::Hint);
                return None;
            };
            let kind = match state {
                State::Start => {
                    self.at += 1;
                    self.token(first)
                }
                State::Dot => {
                    self.at += 1;
                    self.state = State::Name;
                    Some(Kind::Symbol("."))
                }
                State::Name => {
                    self.skip(is_name);
                    if self.peek(0) == b'.' && is_name(self.peek(1)) {
                        self.state = State::Dot;
                    }
                    Some(Kind::Name)
                }
                State::Host => {
                    self.skip(|byte| is_name(byte) || byte == b'.');
                    Some(Kind::Value)
                }
                State::SecondAt => {
                    self.at += 1;
                    self.state = if is_name(self.peek(0)) { State::Variable } else { State::Start };
                    Some(Kind::Symbol("@"))
                }
                State::Variable => Some(self.variable()),
                State::Hint => self.hint_token(),
            };
            if let Some(kind) = kind {
                return Some(Lexeme { kind, start, end: self.at });
            }
        }
    }
}

/// Operators with several characters. Longer operators come before their prefixes.
const OPERATORS: [&str; 12] = ["<=>", "->>", "<=", "<>", "<<", ">=", ">>", "!=", "&&", "||", ":=", "->"];
const CHARACTERS: &str = "!%&()*+,-./:;<=>@[\\]^{|}~";
const HINTABLE: [&str; 5] = ["SELECT", "INSERT", "REPLACE", "UPDATE", "DELETE"];

/// Return whether the byte can be part of an identifier without quotes. All bytes of multi-byte characters can.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

fn is_space_or_control(byte: u8) -> bool {
    byte == b' ' || byte.is_ascii_control()
}
