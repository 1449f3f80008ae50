//! Checks a footer (`FileMetaData` in parquet.thrift) before the Parquet library reads it.
//!
//! The library decodes each field that it knows as the expected type, regardless of the type that the footer states.
//! Therefore this check rejects a footer whose stated types differ from the expected ones. For any other footer, the
//! library reads the same values as this check, in memory and time proportional to the size of the footer.

use crate::history::thrift::{BINARY, BOOLEANS, BYTE, DOUBLE, INTEGERS, Input, LISTS, STRUCT};

/// Maximum number of elements of a schema, and of children of one element. The largest schema has 18 elements.
const MOST_ELEMENTS: u64 = 64;

/// The type of a value.
enum Type {
    Boolean,
    Byte,
    Integer,
    /// The number of children of an element of the schema.
    Count,
    Double,
    Binary,
    List(&'static Type),
    /// The elements of a schema.
    Elements(&'static Type),
    /// The types of the known fields, by id. The library skips other fields.
    Struct(&'static [(u8, Type)]),
}

use Type::{Binary, Boolean, Byte, Count, Double, Elements, Integer, List, Struct};

const EMPTY: Type = Struct(&[]);
const UNIT: Type = Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]);
const TIME: Type = Struct(&[(1, Boolean), (2, UNIT)]);
const LOGICAL: Type = Struct(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, Integer), (2, Integer)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, Byte), (2, Boolean)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, Byte)])),
    (17, Struct(&[(1, Binary)])),
    (18, Struct(&[(1, Binary), (2, Integer)])),
]);
const ELEMENT: Type = Struct(&[
    (1, Integer),
    (2, Integer),
    (3, Integer),
    (4, Binary),
    (5, Count),
    (6, Integer),
    (7, Integer),
    (8, Integer),
    (9, Integer),
    (10, LOGICAL),
]);
const KEY_VALUE: Type = Struct(&[(1, Binary), (2, Binary)]);
const STATISTICS: Type = Struct(&[
    (1, Binary),
    (2, Binary),
    (3, Integer),
    (4, Integer),
    (5, Binary),
    (6, Binary),
    (7, Boolean),
    (8, Boolean),
    (9, Integer),
]);
const BOX: Type = Struct(&[
    (1, Double),
    (2, Double),
    (3, Double),
    (4, Double),
    (5, Double),
    (6, Double),
    (7, Double),
    (8, Double),
]);
const COLUMN_METADATA: Type = Struct(&[
    (1, Integer),
    (2, List(&Integer)),
    (3, List(&Binary)),
    (4, Integer),
    (5, Integer),
    (6, Integer),
    (7, Integer),
    (8, List(&KEY_VALUE)),
    (9, Integer),
    (10, Integer),
    (11, Integer),
    (12, STATISTICS),
    (13, List(&Struct(&[(1, Integer), (2, Integer), (3, Integer)]))),
    (14, Integer),
    (15, Integer),
    (16, Struct(&[(1, Integer), (2, List(&Integer)), (3, List(&Integer))])),
    (17, Struct(&[(1, BOX), (2, List(&Integer))])),
]);
const COLUMN: Type = Struct(&[
    (1, Binary),
    (2, Integer),
    (3, COLUMN_METADATA),
    (4, Integer),
    (5, Integer),
    (6, Integer),
    (7, Integer),
]);
const ROW_GROUP: Type = Struct(&[
    (1, List(&COLUMN)),
    (2, Integer),
    (3, Integer),
    (4, List(&Struct(&[(1, Integer), (2, Boolean), (3, Boolean)]))),
    (5, Integer),
    (6, Integer),
    (7, Integer),
]);
const FILE: Type = Struct(&[
    (1, Integer),
    (2, Elements(&ELEMENT)),
    (3, Integer),
    (4, List(&ROW_GROUP)),
    (5, List(&KEY_VALUE)),
    (6, Binary),
    (7, List(&Struct(&[(1, EMPTY), (2, EMPTY)]))),
]);

/// Return whether a footer is well-formed, has the expected types, and claims no more than it contains.
pub fn is_sound(footer: &[u8]) -> bool {
    let mut input = Input::new(footer);
    value(&mut input, STRUCT, &FILE).is_some() && input.rest() == 0
}

/// Check and skip a value that is stored with the type `stored`; return None if that is not the expected type,
/// or if the value is malformed or too long.
fn value(input: &mut Input, stored: u8, expected: &Type) -> Option<()> {
    let matches = match expected {
        Boolean => BOOLEANS.contains(&stored),
        Byte => stored == BYTE,
        Integer | Count => INTEGERS.contains(&stored),
        Double => stored == DOUBLE,
        Binary => stored == BINARY,
        List(_) | Elements(_) => LISTS.contains(&stored),
        Struct(_) => stored == STRUCT,
    };
    if !matches {
        return None;
    }
    match expected {
        Count => input.size(stored).filter(|count| *count <= MOST_ELEMENTS).map(drop),
        List(element) => input.list(u64::MAX, |input, stored| value(input, stored, element)),
        Elements(element) => input.list(MOST_ELEMENTS, |input, stored| value(input, stored, element)),
        Struct(fields) => input.fields(|input, id, stored| match fields.iter().find(|field| field.0 == id) {
            Some((_, expected)) => value(input, stored, expected),
            None => input.skip(stored),
        }),
        Boolean | Byte | Integer | Double | Binary => input.skip(stored),
    }
}
