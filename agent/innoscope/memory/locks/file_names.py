"""Decode the names of databases and tables, which InnoDB stores as encoded file names.

ASCII letters, digits and underscores are not encoded. Letters of alphabets with upper and lower case are
encoded as ``@`` and two characters, all other characters as ``@`` and four hexadecimal digits (Mapping of
Identifiers to File Names, MySQL's manual). The codes are the same in all versions, because they are part of
the names of existing files. The letters below are those of MySQL 5.5.9 (``CONVERT(… USING filename)``).
"""

from __future__ import annotations

import re
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Lower-case letters by code. ``_`` stands for g to z, or for a to z if the other character is ``@``. A space
#: is an unused code. The code of an upper-case letter has an upper-case letter in place of ``_``.
_LOWER: Final = {
    "0_": "àáâãäåæçèéêëìíîïðñòó",
    "1_": "ôõößøùúûüýþÿāăąćĉċčď",
    "2_": "đēĕėęěĝğġģĥħĩīĭįıĳĵķ",
    "3_": "ĸĺļľŀłńņňŉŋōŏőœŕŗřśŝ",
    "4_": "şšţťŧũūŭůűųŵŷźżžſ",
    "5_": "                  ΐ",
    "6_": "άέήίΰαβγδεζηθικλμνξο",
    "7_": "πρςστυφχψωϊϋόύώ ϐϑ",
    "8_": " ϕϖϗϙϛϝϟϡϣϥϧϩϫϭϯϰϱϲϳ",
    "9_": "ϵ϶ϸϻϼ",
    "_0": "абвгдежзийклмнопрсту",
    "_1": "фхцчшщъыьэюяѐёђѓєѕії",
    "_2": "јљњћќѝўџѡѣѥѧѩѫѭѯѱѳѵѷ",
    "_3": "ѹѻѽѿҁ ҋҍҏґғҕҗҙқҝҟҡңҥ",
    "_4": "ҧҩҫҭүұҳҵҷҹһҽҿ ӂӄӆӈӊӌ",
    "_5": "ӎ ӑӓӕӗәӛӝӟӡӣӥӧөӫӭӯӱӳ",
    "_6": "ӵӷӹ      ԁԃԅԇԉԋԍԏ",
    "_7": " աբգդեզէըթժիլխծկհձղճ",
    "_8": "մյնշոչպջռսվտրցւփքօ",
    "_9": "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅺⅻⅼⅽⅾⅿ",
    "_a": "ƀƃƅƈƌƍƒƕƙƚƛƞơƣƥƨƪƫƭư",
    "_b": "ƴƶƹƺƻ ƾƽǆǉǌǎǐǒǔǖǘǚǜǝ",
    "_c": "ǟǡǣǥǧǩǫǭǯǰǳǵǹǻǽǿȁȃȅȇ",
    "_d": "ȉȋȍȏȑȓȕȗșțȝȟȡȣȥȧȩȫȭȯ",
    "_e": "ȱȳȴȵȶȷȸȹ ȼ ȿɀ",
    "_f": "       ɐɑɒɓɔɕɖɗɘəɚɛɜ",
    "_g": "ɝɞɟɠɡɢɣɤɥɦɧɨɩɪɫɬɭɮɯɰ",
    "_h": "ɱɲɳɴɵɶɷɸɹɺɻɼɽɾɿʀʁʂʃʄ",
    "_i": "ʅʆʇʈʉʊʋʌʍʎʏʐʑʒʓʔʕʖʗʘ",
    "_j": "ʙʚʛʜʝʞʟʠʡʢʣʤʥʦʧʨʩʪʫʬ",
    "_k": "ʭʮʯ",
    "_l": "ḁḃḅḇḉḋḍḏḑḓḕḗḙḛḝḟḡḣḥḧ",
    "_m": "ḩḫḭḯḱḳḵḷḹḻḽḿṁṃṅṇṉṋṍṏ",
    "_n": "ṑṓṕṗṙṛṝṟṡṣṥṧṩṫṭṯṱṳṵṷ",
    "_o": "ṹṻṽṿẁẃẅẇẉẋẍẏẑẓẕẖẗẘẙẚ",
    "_p": "ẛ    ạảấầẩẫậắằẳẵặẹẻẽ",
    "_q": "ếềểễệỉịọỏốồổỗộớờởỡợụ",
    "_r": "ủứừửữựỳỵỷỹ",
    "_s": "ἀἁἂἃἄἅἆἇἐἑἒἓἔἕ    ἠἡ",
    "_t": "ἢἣἤἥἦἧἰἱἲἳἴἵἶἷὀὁὂὃὄὅ",
    "_u": "    ὐὑὒὓὔὕὖὗ    ὠὡὢὣ",
    "_v": "ὤὥὦὧὰάὲέὴήὶίὸόὺύὼώ",
    "_w": "ᾀᾁᾂᾃᾄᾅᾆᾇᾐᾑᾒᾓᾔᾕᾖᾗᾠᾡᾢᾣ",
    "_x": "ᾤᾥᾦᾧᾰᾱᾲᾳᾴ ᾶᾷῂῃῄ ῆῇῐῑ",
    "_y": "ῒΐ  ῖῗ ῠῡῢΰῤῥῦῧ  ῲῳ",
    "_z": " ῶῷ",
    "@_": "ⓐⓑⓒⓓⓔⓕⓖⓗⓘⓙⓚⓛⓜⓝⓞⓟⓠⓡⓢⓣⓤⓥⓦⓧⓨⓩ",
    "_@": "ａｂｃｄｅｆｇｈｉｊｋｌｍｎｏｐｑｒｓｔｕｖｗｘｙｚ",
}
#: Upper-case letters whose code is not that of their lower-case letter.
_UPPER: Final = {
    "Oe": "Ⱥ", "Qe": "Ⱦ", "Vi": "Ɂ", "8Y": "Σ", "7Y": "ϒ", "7Z": "ϓ", "8G": "ϔ", "9L": "Ͻ", "9M": "Ͼ",
    "9N": "Ͽ", "T4": "Ӏ",
}  # fmt: skip


def _letters() -> Iterator[tuple[str, str]]:
    """Yield each code and its letter, also for some upper-case letters that servers encode as four digits."""
    for row, letters in _LOWER.items():
        columns = ascii_lowercase if "@" in row else ascii_lowercase[ascii_lowercase.index("g") :]
        for column, letter in zip(columns, letters, strict=False):
            yield row.replace("_", column), letter
            # The capital of ᾀ is ᾈ, which Unicode calls title case; its upper case has two characters.
            upper = letter.upper() if len(letter.upper()) == 1 else letter.title()
            if upper != letter:
                yield row.replace("_", column.upper()), upper
    yield from _UPPER.items()


_LETTERS: Final = {code: letter for code, letter in _letters() if len(letter) == 1 and letter != " "}
_CODE: Final = re.compile("@(?:([0-9a-f]{4})|(..))")


def decoded(name: str) -> str:
    """Return the name of a database or table. Codes of unprintable characters, and unknown ones, are kept."""
    return _CODE.sub(_character, name)


def _character(code: re.Match[str]) -> str:
    found = chr(int(code[1], 16)) if code[1] else _LETTERS.get(code[2], "\0")
    return found if found.isprintable() else code[0]
