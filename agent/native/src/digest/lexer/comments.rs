//! Reads comments, some of which the server executes.

use super::hints::Hint;
use super::{Kind, Lexer, State};

/// The first MySQL version with optimizer hints. MariaDB's digests do not show the text of hints: before 12.0 they
/// are comments, and later one token, `HINT_COMMENT`, that ends at the first `*/` (sql_lex.cc).
const FIRST_HINTS: u32 = 50_700;

impl Lexer<'_> {
    pub(super) fn line_comment(&mut self) -> Option<Kind> {
        self.skip(|byte| byte != b'\n');
        None
    }

    /// Read the comment at `start`, or only its beginning if the server executes it or if it contains hints.
    pub(super) fn comment(&mut self, start: usize, hintable: bool) -> Option<Kind> {
        self.at = start + 2;
        if matches!(self.peek(0), b'!' | b'M' | b'+') && !self.unsure && !self.open {
            self.open = self.hides_quotes();
        }
        match self.peek(0) {
            b'+' if hintable && self.context.version >= FIRST_HINTS => {
                self.at += 1;
                self.state = State::Hint;
                self.hint = Hint::default();
            }
            b'!' => {
                if self.unsure && self.hides_quotes() {
                    return Some(self.end());
                }
                self.at += 1;
                let digits = (0..6).take_while(|&distance| self.peek(distance).is_ascii_digit()).count();
                let number = &self.text[self.at..self.at + digits];
                let needed = number.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
                if digits < 5 || needed <= self.context.version {
                    self.at += if digits < 5 { 0 } else { digits };
                    self.in_comment = true;
                } else {
                    self.skip_nested_comment();
                }
            }
            // MariaDB executes `/*M! … */`, and some versions of MySQL read hints from `/*+ … */`.
            b'M' | b'+' if self.unsure && self.hides_quotes() => return Some(self.end()),
            _ => self.skip_after(b"*/"),
        }
        None
    }

    /// Return whether a comment that some servers execute contains characters that may begin a string, a quoted
    /// name or a comment.
    fn hides_quotes(&self) -> bool {
        let rest = self.rest();
        let end = rest.windows(2).position(|pair| pair == b"*/").unwrap_or(rest.len());
        let inside = &rest[..end];
        inside.iter().any(|byte| b"'\"`$#".contains(byte))
            || inside.windows(2).any(|pair| pair == b"--" || pair == b"/*")
    }

    /// Skip a comment that may contain complete comments, which cannot be nested further.
    fn skip_nested_comment(&mut self) {
        while self.at < self.text.len() {
            if self.rest().starts_with(b"*/") {
                self.at += 2;
                return;
            }
            if self.rest().starts_with(b"/*") {
                self.at += 2;
                self.skip_after(b"*/");
            } else {
                self.at += 1;
            }
        }
        self.unclosed();
    }
}
