"""What analyzers find in ten languages, as rows: ``python -m bench.languages``.

The rule. A language has ten things and ten acts, each in two forms: that of a record ("yesterday we repaired the
bicycle") and another that a question takes ("who repairs bicycles?"): another number or case, another tense and person,
where the language has them. Thing i stands in two records, with act i and with act i + 3, so every act stands in two as
well, and one record of 20 has both. Each record is asked for by its thing and act. The act always takes the question's
form. One question of a thing names it as the record does. The other, in turns the first or the second, takes the
question's form, and is typed carelessly: in small letters, and without accents where the script is Latin.

Appends to ``bench/results/languages.jsonl`` a row for each language: the share of questions whose own record comes
first, and among the first 5, by analyzer. ``snowball`` is the language's own stemmer, where there is one.
"""

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import fanrank as fr
from fanrank.engine.text.analyzers import SNOWBALL

from .harness.command import Command

LATIN = ("German", "French", "Spanish")
# Record, question; things, acts: the form of a record and, behind a slash where it is another, that of a question.
LANGUAGES = {
    "German": (
        "Gestern haben wir {thing} {act}. | Wer {act} {thing}?",
        "das Fahrrad/Fahrräder, das Fenster/Fenster, die Tür/Türen, den Stuhl/Stühle, das Buch/Bücher, die Uhr/Uhren, "
        "die Lampe/Lampen, das Boot/Boote, das Bild/Bilder, den Tisch/Tische",
        "repariert, gekauft/kauft, verkauft, gestrichen/streicht, gefunden/findet, geputzt/putzt, versteckt, "
        "fotografiert, gewaschen/wäscht, gemessen/misst",
    ),
    "French": (
        "Hier nous avons {act} {thing}. | Qui {act} {thing} ?",
        "le vélo/des vélos, la fenêtre/des fenêtres, la porte/des portes, la chaise/des chaises, le livre/des livres, "
        "l’horloge/des horloges, la lampe/des lampes, le bateau/des bateaux, le tableau/des tableaux, "
        "la table/des tables",
        "réparé/répare, acheté/achète, vendu/vend, peint, trouvé/trouve, nettoyé/nettoie, caché/cache, "
        "photographié/photographie, lavé/lave, mesuré/mesure",
    ),
    "Spanish": (
        "Ayer {act} {thing}. | ¿Quién {act} {thing}?",
        "la bicicleta/bicicletas, la ventana/ventanas, la puerta/puertas, el sillón/sillones, el libro/libros, "
        "el reloj/relojes, la lámpara/lámparas, el camión/camiones, el cuadro/cuadros, la mesa/mesas",
        "reparamos/repara, compramos/compra, vendimos/vende, pintamos/pinta, encontramos/encuentra, limpiamos/limpia, "
        "escondimos/esconde, fotografiamos/fotografía, lavamos/lava, medimos/mide",
    ),
    "Russian": (
        "Вчера мы {act} {thing}. | Кто {act} {thing}?",
        "велосипед/велосипеды, окно/окна, дверь/двери, стул/стулья, книгу/книги, ключ/ключи, лампу/лампы, лодку/лодки, "
        "картину/картины, стол/столы",
        "чинили/чинит, покупали/покупает, продавали/продаёт, красили/красит, находили/находит, чистили/чистит, "
        "прятали/прячет, фотографировали/фотографирует, мыли/моет, измеряли/измеряет",
    ),
    "Arabic": (
        "أمس {act} {thing}. | من {act} {thing}؟",
        "الدراجة/الدراجات, النافذة/النوافذ, الباب/الأبواب, الكرسي/الكراسي, الكتاب/الكتب, الساعة/الساعات, "
        "المصباح/المصابيح, القارب/القوارب, الصورة/الصور, الطاولة/الطاولات",
        "أصلحنا/يصلح, اشترينا/يشتري, بعنا/يبيع, طلينا/يطلي, وجدنا/يجد, نظفنا/ينظف, "
        "أخفينا/يخفي, صورنا/يصور, غسلنا/يغسل, قسنا/يقيس",
    ),
    "Hindi": (
        "कल हमने {thing} को {act}। | {thing} को कौन {act} है?",
        "साइकिल/साइकिलों, खिड़की/खिड़कियों, दरवाज़े/दरवाज़ों, कुर्सी/कुर्सियों, किताब/किताबों, घड़ी/घड़ियों, बत्ती/बत्तियों, नाव/नावों, "
        "तस्वीर/तस्वीरों, मेज़/मेज़ों",
        "सुधारा/सुधारता, ख़रीदा/ख़रीदता, बेचा/बेचता, रँगा/रँगता, ढूँढा/ढूँढता, "
        "पोंछा/पोंछता, छिपाया/छिपाता, उठाया/उठाता, धोया/धोता, नापा/नापता",
    ),
    "Chinese": (
        "昨天我们{act}了{thing}。 | 谁会{act}这些{thing}？",
        "自行车, 窗户, 大门, 椅子, 书本, 时钟, 台灯, 小船, 图画, 桌子",
        "修理, 购买, 出售, 粉刷, 发现, 打扫, 隐藏, 拍摄, 清洗, 测量",
    ),
    "Japanese": (
        "昨日、私たちは{thing}を{act}。 | {thing}を{act}のは誰ですか。",
        "自転車, 窓, ドア, 椅子, 本, 時計, ランプ, 船, 絵, 机",
        "修理しました/修理する, 買いました/買う, 売りました/売る, 塗りました/塗る, 見つけました/見つける, "
        "掃除しました/掃除する, 隠しました/隠す, 撮影しました/撮影する, 洗いました/洗う, 測りました/測る",
    ),
    "Korean": (
        "어제 우리는 {thing} {act}. | 누가 {thing} {act}?",
        "자전거를/자전거들을, 창문을/창문들을, 문을/문들을, 의자를/의자들을, 책을/책들을, 시계를/시계들을, "
        "램프를/램프들을, 배를/배들을, 그림을/그림들을, 책상을/책상들을",
        "고쳤습니다/고칩니까, 샀습니다/삽니까, 팔았습니다/팝니까, 칠했습니다/칠합니까, 찾았습니다/찾습니까, "
        "청소했습니다/청소합니까, 숨겼습니다/숨깁니까, 찍었습니다/찍습니까, 씻었습니다/씻습니까, 쟀습니다/잽니까",
    ),
    "Thai": (
        "เมื่อวานเรา{act}{thing}แล้ว | ใครจะ{act}{thing}เหล่านั้น",
        "จักรยาน, หน้าต่าง, ประตู, เก้าอี้, หนังสือ, นาฬิกา, โคมไฟ, เรือ, รูปภาพ, โต๊ะ",
        "ซ่อม, ซื้อ, ขาย, ทาสี, พบ, ทำความสะอาด, ซ่อน, ถ่าย, ล้าง, วัด",
    ),
}


def make_questions(language: str) -> list[tuple[str, str]]:
    """(record, question) of a language, 20 of them."""
    record, question = LANGUAGES[language][0].split(" | ")
    things, acts = (
        [(form.partition("/")[0], form.rpartition("/")[2]) for form in forms.split(", ")]
        for forms in LANGUAGES[language][1:]
    )
    pairs = []
    for number, thing in enumerate(things):
        for turn, act in enumerate((acts[number], acts[(number + 3) % len(acts)]), number):
            asked = question.format(thing=thing[turn % 2], act=act[1])
            careless = _typed_carelessly(asked, language) if turn % 2 else asked
            pairs.append((record.format(thing=thing[0], act=act[0]), careless))
    return pairs


def _typed_carelessly(text: str, language: str) -> str:
    if language in LATIN:
        text = "".join(letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter))
    return text.lower()


def measure(language: str) -> dict[str, Any]:
    """The row of a language."""
    pairs = make_questions(language)
    records = [fr.Record(str(number), record) for number, (record, _) in enumerate(pairs)]
    own = f"snowball:{language.lower()}"
    names = {"agent": "agent", "lucene": "lucene"} | ({"snowball": own} if own in SNOWBALL else {})
    systems = {}
    for shown, name in names.items():
        hits = fr.Engine.from_records(records, analyzer=name).search([question for _, question in pairs], k=5)
        systems[shown] = {
            f"hit@{k}": sum(str(number) in [hit.id for hit in row[:k]] for number, row in enumerate(hits)) / len(pairs)
            for k in (1, 5)
        }
    return {"language": language, "n": len(pairs), "systems": systems}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every language."""
    command = Command("languages", "What analyzers find in ten languages, of questions made by rule.")
    command.parse(arguments)
    command.keep(map(measure, LANGUAGES))
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
