//! Normalizes SQL statements like the server's statement digests (sql/sql_digest.cc in MySQL), so that literals
//! can be discarded where a statement is read.
//!
//! The lexer's tokens are folded with the server's rules: literals become `?`, and lists of them `?, ...` or
//! `(...)`. Digesting a statement of any content and length takes linear time and bounded memory.

mod keywords;
mod lexer;

use std::borrow::Cow;

pub use keywords::Words;
use lexer::{Kind, Lexer};

/// Maximum size of the tokens in bytes, as the server counts them: the default of `max_digest_length`. Further
/// tokens are dropped.
const MAX_TOKENS: usize = 1024;
/// Maximum length of an identifier in a digest, in bytes. The server prints longer ones as `...`.
const MAX_NAME: usize = 64;
const ELLIPSIS: &str = "...";

/// The properties of the server and the session that affect normalization.
#[derive(Clone, Copy)]
pub struct Context {
    /// The highest N for which the server executes `/*!N … */`. In MySQL, this is the server's version, such as
    /// 80031.
    pub version: u32,
    /// The server's keywords.
    pub words: Words,
    /// True if the version is known, the session's SQL mode contains neither NO_BACKSLASH_ESCAPES nor ANSI_QUOTES,
    /// and its character set is UTF-8 or has single-byte characters. If false, the text ends at the first place where
    /// another version, mode or character set could delimit a literal differently.
    pub certain: bool,
}

/// A token as stored in the digest.
#[derive(Debug, PartialEq)]
enum Token<'a> {
    Fixed(&'static str),
    Name(Cow<'a, str>),
    NameBeforeAt(Cow<'a, str>),
}

/// The normalized texts of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Normalized {
    /// The text according to the server's own rules.
    pub text: String,
    /// The text according to MySQL 9's rules. The digest's id is a hash of this text.
    pub newest: String,
}

/// Normalize a statement according to the server's rules, and according to MySQL 9's rules. Only the first text is
/// truncated to `max_chars` characters.
pub fn normalize_both(statement: &[u8], context: Context, max_chars: usize) -> Normalized {
    let newest = normalize(statement, Context { words: Words::Mysql9, ..context });
    let text = if context.words == Words::Mysql9 { newest.clone() } else { normalize(statement, context) };
    Normalized { text: cut(text, max_chars), newest }
}

/// Normalize a statement. The result contains no literals and no control characters.
pub fn normalize(text: &[u8], context: Context) -> String {
    let mut folded = Folded { tokens: Vec::new(), bytes: 0, full: false, words: context.words };
    let mut lexer = Lexer::new(text, context);
    for lexeme in lexer.by_ref() {
        match lexeme.kind {
            Kind::Symbol(")") => folded.close(),
            Kind::Symbol(symbol) => folded.push(Token::Fixed(symbol)),
            Kind::Number => folded.value(true),
            Kind::Value => folded.value(false),
            Kind::Keyword("NULL") if folded.expects_value() => folded.value(false),
            Kind::Keyword(keyword) => folded.push(Token::Fixed(keyword)),
            Kind::Name | Kind::QuotedName | Kind::NameBeforeAt => match name(&text[lexeme.start..lexeme.end])
            {
                None if context.certain => folded.value(false),
                None => {
                    folded.fix(ELLIPSIS);
                    break;
                }
                Some(name) if name.is_empty() => {}
                Some(name) if lexeme.kind == Kind::NameBeforeAt => folded.push(Token::NameBeforeAt(name)),
                Some(name) => folded.push(Token::Name(name)),
            },
        }
        if folded.full {
            break;
        }
    }
    if lexer.cut {
        folded.fix(ELLIPSIS);
    }
    while folded.tokens.pop_if(|token| *token == Token::Fixed(";")).is_some() {}
    print(&folded.tokens)
}

/// Return whether a statement ends within a string, a quoted name or a comment in the default SQL mode. Return
/// true if that depends on which comments the server executes.
pub fn is_unfinished(statement: &[u8]) -> bool {
    let mut lexer = Lexer::new(statement, Context { version: 0, words: Words::Mysql9, certain: true });
    lexer.by_ref().for_each(drop);
    lexer.open
}

/// Truncate a text to `max_chars` characters. A truncated text ends with `...`.
pub fn cut(mut text: String, max_chars: usize) -> String {
    if text.char_indices().nth(max_chars).is_some() {
        let kept = text.char_indices().nth(max_chars.saturating_sub(ELLIPSIS.len()));
        text.truncate(kept.map_or(0, |(position, _)| position));
        text.push_str(ELLIPSIS);
    }
    text
}

/// Return an identifier without its quotes; None if it is not UTF-8 or contains control characters.
fn name(text: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(text).ok()?;
    let name: Cow<'_, str> = match text.strip_prefix('`') {
        None => text.into(),
        Some(rest) => {
            let inner = rest.strip_suffix('`')?;
            if inner.contains('`') { inner.replace("``", "`").into() } else { inner.into() }
        }
    };
    (!name.contains(char::is_control)).then_some(name)
}

/// The tokens folded so far. The server's rules depend only on the last tokens.
struct Folded<'a> {
    tokens: Vec<Token<'a>>,
    /// The space in bytes that the server needs for `tokens`.
    bytes: usize,
    full: bool,
    words: Words,
}

impl<'a> Folded<'a> {
    fn push(&mut self, token: Token<'a>) {
        let size = match &token {
            Token::Fixed(_) => 2,
            Token::Name(name) | Token::NameBeforeAt(name) => 4 + name.len(),
        };
        self.full |= self.bytes + size > MAX_TOKENS;
        if !self.full {
            self.bytes += size;
            self.tokens.push(token);
        }
    }

    /// Return the token at this distance from the last one; `""` if there is none or it is an identifier.
    fn last(&self, distance: usize) -> &'static str {
        let index = self.tokens.len().checked_sub(distance + 1);
        match index.map(|index| &self.tokens[index]) {
            Some(Token::Fixed(text)) => text,
            _ => "",
        }
    }

    /// Remove the last `count` tokens, none of which may be an identifier.
    fn pop(&mut self, count: usize) {
        self.tokens.truncate(self.tokens.len() - count);
        self.bytes -= 2 * count;
    }

    fn fix(&mut self, text: &'static str) {
        self.push(Token::Fixed(text));
    }

    /// Add a literal. At the start of an expression, a sign before a number is part of the literal.
    fn value(&mut self, number: bool) {
        while number && matches!(self.last(0), "-" | "+") && self.starts_expression(self.last(1)) {
            self.pop(1);
        }
        if self.last(0) == "," && matches!(self.last(1), "?" | "?, ...") {
            self.pop(2);
            self.fix("?, ...");
        } else {
            self.fix("?");
        }
    }

    /// Add `)`, which may complete a row of literals, a list of rows or an IN list.
    fn close(&mut self) {
        let (row, rows) = match (self.last(1), self.last(0)) {
            ("(", "?") => ("(?)", "(?) /* , ... */"),
            ("(", "?, ...") => ("(...)", "(...) /* , ... */"),
            _ => return self.fix(")"),
        };
        self.pop(2);
        if self.last(0) == "," && (self.last(1) == row || self.last(1) == rows) {
            self.pop(2);
            self.fix(rows);
        } else if self.last(0) == "IN" {
            self.pop(1);
            self.fix("IN (...)");
        } else {
            self.fix(row);
        }
    }

    /// Return whether a sign after this token is unary (`set_start_expr_token` in sql/gen_lex_token.cc).
    fn starts_expression(&self, token: &str) -> bool {
        STARTS_EXPRESSION.contains(&token)
            || self.words == Words::Mysql9 && STARTS_EXPRESSION_9.contains(&token)
    }

    /// Return whether NULL is a literal here, rather than a part of `IS NULL`, `NOT NULL`, `SET NULL` or an
    /// attribute of a column. The server knows this from its grammar.
    fn expects_value(&self) -> bool {
        let last = if self.last(0) == "NOT" { self.last(1) } else { self.last(0) };
        [&STARTS_EXPRESSION[..], &STARTS_EXPRESSION_9, &BEFORE_NULL].iter().any(|list| list.contains(&last))
    }
}

const STARTS_EXPRESSION: [&str; 37] = [
    "(", ",", "|", "&", "+", "-", "*", "/", "%", "^", "<<", ">>", "&&", "||", "AND", "AT", "BETWEEN", "CASE",
    "DEFAULT", "DIV", "ELSEIF", "ENDS", "EVERY", "IF", "INTERVAL", "LIKE", "MOD", "NOT", "OR", "RETURN",
    "RLIKE", "SELECT", "STARTS", "UNTIL", "WHEN", "WHILE", "XOR",
];
const STARTS_EXPRESSION_9: [&str; 9] = ["=", "<=>", "<", "<=", ">", ">=", "!=", "THEN", "ELSE"];
/// Other tokens after which NULL is a literal.
const BEFORE_NULL: [&str; 23] = [
    "!",
    "~",
    ":=",
    "*/",
    "ALL",
    "BOTH",
    "BY",
    "DISTINCTROW",
    "DO",
    "ESCAPE",
    "FROM",
    "HAVING",
    "HIGH_PRIORITY",
    "LEADING",
    "ON",
    "SQL_BIG_RESULT",
    "SQL_BUFFER_RESULT",
    "SQL_CALC_FOUND_ROWS",
    "SQL_NO_CACHE",
    "SQL_SMALL_RESULT",
    "STRAIGHT_JOIN",
    "TRAILING",
    "WHERE",
];

/// Return the tokens as text. A space separates two tokens, except after `@`, after an identifier before `@`, and
/// after an identifier that is printed as `...`.
fn print(tokens: &[Token<'_>]) -> String {
    let mut text = String::new();
    let mut space = false;
    for token in tokens {
        if std::mem::take(&mut space) {
            text.push(' ');
        }
        match token {
            Token::Fixed(fixed) => {
                text.push_str(fixed);
                space = *fixed != "@";
            }
            Token::Name(name) | Token::NameBeforeAt(name) if name.len() > MAX_NAME => text.push_str(ELLIPSIS),
            Token::Name(name) | Token::NameBeforeAt(name) => {
                text.push('`');
                text.push_str(name);
                text.push('`');
                space = matches!(token, Token::Name(_));
            }
        }
    }
    text
}
