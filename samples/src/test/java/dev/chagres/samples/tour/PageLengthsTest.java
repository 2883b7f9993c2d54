package dev.chagres.samples.tour;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Pages answer a question in few words, sentences can be read once, and cells of the README's tables fit a line. */
@Tag("L0")
class PageLengthsTest {
    private static final int PAGE_WORDS = 1_500;
    private static final int SENTENCE_WORDS = 40;
    private static final int CELL_CHARACTERS = 120;
    private static final Pattern CODE = Pattern.compile("^ *```.*?^ *```$", Pattern.MULTILINE | Pattern.DOTALL);
    /** Where a paragraph ends: an empty line, a heading, a row of a table, or the next item of a list. */
    private static final Pattern BREAK = Pattern.compile("\\n\\s*\\n|\\n(?=\\s*(?:[-*]|\\d+\\.) )");

    private static final Pattern NO_PROSE = Pattern.compile("^(?:#|\\s*\\|).*$", Pattern.MULTILINE);
    private static final Pattern ITEM = Pattern.compile("^\\s*(?:[-*]|\\d+\\.) ");
    private static final Pattern END = Pattern.compile("(?<=[.!?])[)*\"]*\\s+(?=[A-Z0-9`*\\[(_\"])");
    private static final Pattern TARGET = Pattern.compile("]\\([^)]*\\)");

    /** Returns the paragraphs and items of a page, without code, tables and headings. */
    private static List<String> paragraphs(Path page) throws IOException {
        String text = CODE.matcher(Files.readString(page)).replaceAll("\n");
        return Arrays.stream(BREAK.split(NO_PROSE.matcher(text).replaceAll("\n"), -1))
                .map(paragraph -> ITEM.matcher(paragraph).replaceFirst(""))
                .map(String::strip)
                .filter(paragraph -> !paragraph.isEmpty())
                .toList();
    }

    private static int words(String text) {
        return text.strip().split("\\s+", -1).length;
    }

    /** CONTRIBUTING has numbered steps for each kind of thing, of which a reader takes one list. */
    @Test
    void noPageIsLong() throws IOException {
        List<String> tooLong = new ArrayList<>();
        List<Path> pages = new ArrayList<>(PageLinksTest.pages());
        assertTrue(pages.remove(PageLinksTest.PROJECT.resolve("CONTRIBUTING.md")));
        for (Path page : pages) {
            int count =
                    paragraphs(page).stream().mapToInt(PageLengthsTest::words).sum();
            if (count >= PAGE_WORDS) {
                tooLong.add(page.getFileName() + " has " + count + " words");
            }
        }
        assertEquals(List.of(), tooLong, "pages of " + PAGE_WORDS + " words: divide them by question");
    }

    @Test
    void noSentenceIsLong() throws IOException {
        List<String> tooLong = new ArrayList<>();
        int count = 0;
        for (Path page : PageLinksTest.pages()) {
            for (String paragraph : paragraphs(page)) {
                for (String sentence : END.split(TARGET.matcher(paragraph).replaceAll("]"), -1)) {
                    count++;
                    if (words(sentence) > SENTENCE_WORDS) {
                        tooLong.add(page.getFileName() + ": " + sentence);
                    }
                }
            }
        }
        assertEquals(List.of(), tooLong, "sentences of over " + SENTENCE_WORDS + " words");
        assertTrue(count > 1_000, "expected the pages to have sentences, got " + count);
    }

    @Test
    void cellsOfTheReadmeFitALine() throws IOException {
        Path readme = PageLinksTest.PROJECT.resolve("README.md");
        String tooLong = Files.readAllLines(readme).stream()
                .filter(line -> line.startsWith("|"))
                .flatMap(line -> Arrays.stream(line.split("\\|", -1)))
                .map(cell -> TARGET.matcher(cell).replaceAll("]").strip())
                .filter(cell -> cell.length() >= CELL_CHARACTERS)
                .collect(Collectors.joining("\n"));
        assertEquals("", tooLong, "cells of the README's tables with " + CELL_CHARACTERS + " characters or more");
    }
}
