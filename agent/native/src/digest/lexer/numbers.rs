//! Reads numbers, and identifiers that begin with a digit.

use super::{Kind, Lexer, State, is_name};

impl Lexer<'_> {
    /// Read the digits of `x'…'` or `b'…'`. The server accepts no other characters.
    pub(super) fn bits(&mut self) -> Kind {
        self.skip(|byte| byte.is_ascii_hexdigit());
        if self.peek(0) == b'\'' {
            self.at += 1;
        } else {
            self.unclosed();
        }
        Kind::Number
    }

    pub(super) fn number_or_name(&mut self, start: usize) -> Kind {
        if self.text[start] == b'0' && matches!(self.peek(0), b'x' | b'X' | b'b' | b'B') {
            self.at += 1;
            self.skip(|byte| byte.is_ascii_hexdigit());
            if !is_name(self.peek(0)) {
                return Kind::Number;
            }
        } else {
            self.skip(|byte| byte.is_ascii_digit());
            if self.peek(0) == b'.' {
                self.at += 1;
                return self.fraction();
            }
            if !is_name(self.peek(0)) || self.exponent() {
                return Kind::Number;
            }
        }
        // If the statement was truncated within an exponent, this is the beginning of a number.
        if matches!(self.rest(), [b'e' | b'E'] | [b'e' | b'E', b'+' | b'-']) {
            self.at = self.text.len();
            return Kind::Number;
        }
        self.skip(is_name);
        if self.peek(0) == b'.' && is_name(self.peek(1)) {
            self.state = State::Dot;
        }
        Kind::Name
    }

    /// Skip an exponent with digits. Return whether there is one.
    fn exponent(&mut self) -> bool {
        let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
        let found = matches!(self.peek(0), b'e' | b'E') && self.peek(1 + sign).is_ascii_digit();
        if found {
            self.at += 1 + sign;
            self.skip(|byte| byte.is_ascii_digit());
        }
        found
    }

    /// Read the digits after a decimal point, and an exponent.
    pub(super) fn fraction(&mut self) -> Kind {
        self.skip(|byte| byte.is_ascii_digit());
        self.exponent();
        Kind::Number
    }
}
