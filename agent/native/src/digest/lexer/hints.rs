//! Reads optimizer hints: comments of the form `/*+ … */` (sql/sql_lex_hints.h in MySQL 8.0).

use super::{Kind, Lexer, State, is_name};

/// The state in a hint comment.
#[derive(Clone, Copy, Default)]
pub(super) struct Hint {
    opened: bool,
    depth: usize,
    /// True inside the parentheses of a known hint, where words are identifiers.
    known: bool,
    after_at: bool,
    after_equal: bool,
}

impl Lexer<'_> {
    /// Read a token of a hint comment. Words outside the parentheses of a known hint, and values, are returned as
    /// `Kind::Value`, so that they are not printed.
    pub(super) fn hint_token(&mut self) -> Option<Kind> {
        if self.rest().starts_with(b"*/") {
            self.at += 2;
            return self.hint.opened.then_some(Kind::Symbol("*/"));
        }
        self.state = State::Hint;
        if !self.hint.opened {
            self.hint.opened = true;
            return Some(Kind::Symbol("/*+"));
        }
        let start = self.at;
        let first = self.peek(0);
        self.at += 1;
        let after_at = std::mem::take(&mut self.hint.after_at);
        let after_equal = std::mem::take(&mut self.hint.after_equal);
        let kind = match first {
            b'\'' | b'"' | b'`' => {
                while self.at < self.text.len() && self.peek(0) != first {
                    if self.rest().starts_with(b"*/") {
                        return Some(self.end()); // a syntax error
                    }
                    self.at += 1;
                }
                self.open |= self.at == self.text.len();
                self.at = self.text.len().min(self.at + 1);
                match first {
                    b'`' if self.peek(0) == b'@' => Kind::NameBeforeAt,
                    b'`' => Kind::QuotedName,
                    _ => Kind::Value,
                }
            }
            _ if is_name(first) => {
                self.skip(is_name);
                if first.is_ascii_digit() {
                    if self.peek(0) == b'.' {
                        self.at += 1;
                        self.skip(|byte| byte.is_ascii_digit());
                    }
                    return Some(Kind::Number);
                }
                let keyword = self.context.words.find_hint(&self.text[start..self.at]);
                if let Some(keyword) = keyword.filter(|_| !after_at && !after_equal) {
                    self.hint.known |= self.hint.depth == 0;
                    return Some(Kind::Keyword(keyword));
                }
                self.hint.known &= self.hint.depth > 0;
                if self.peek(0) == b'@' { Kind::NameBeforeAt } else { Kind::Name }
            }
            _ => {
                match first {
                    b'(' => self.hint.depth += 1,
                    b')' => {
                        self.hint.depth = self.hint.depth.saturating_sub(1);
                        self.hint.known &= self.hint.depth > 0;
                    }
                    b'@' => self.hint.after_at = true,
                    b'=' => self.hint.after_equal = true,
                    _ => {}
                }
                return self.symbol(start);
            }
        };
        let named = self.hint.known && self.hint.depth > 0 && !after_equal;
        Some(if named { kind } else { Kind::Value })
    }
}
