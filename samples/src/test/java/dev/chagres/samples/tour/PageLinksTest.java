package dev.chagres.samples.tour;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Links of the README, AGENTS, CONTRIBUTING and the documentation lead to files of the project, and to headings that are there. */
@Tag("L0")
class PageLinksTest {
    static final Path PROJECT = Path.of("").toAbsolutePath().getParent();
    private static final Pattern LINK = Pattern.compile("]\\(([^)\\s]+)\\)");
    private static final Pattern HEADING = Pattern.compile("^#{1,6} (.*)$", Pattern.MULTILINE);
    private static final Pattern CODE = Pattern.compile("^```.*?^```$", Pattern.MULTILINE | Pattern.DOTALL);

    /** Returns the pages of the project that people read. */
    static List<Path> pages() throws IOException {
        List<Path> pages = new ArrayList<>(List.of(
                PROJECT.resolve("README.md"),
                PROJECT.resolve("AGENTS.md"),
                PROJECT.resolve("CONTRIBUTING.md"),
                PROJECT.resolve("jmh/README.md")));
        try (Stream<Path> docs = Files.list(PROJECT.resolve("docs"))) {
            docs.filter(file -> file.toString().endsWith(".md")).forEach(pages::add);
        }
        return pages;
    }

    private static String withoutCode(Path page) throws IOException {
        return CODE.matcher(Files.readString(page)).replaceAll("");
    }

    /** Returns the names by which GitHub links to the headings of a page: one that comes again has a number behind it. */
    private static Set<String> headings(Path page) throws IOException {
        Map<String, Integer> seen = new HashMap<>();
        Set<String> names = new HashSet<>();
        Matcher heading = HEADING.matcher(withoutCode(page));
        while (heading.find()) {
            String name = heading.group(1)
                    .toLowerCase(Locale.ROOT)
                    .replaceAll("[^\\p{L}\\p{N} _-]", "")
                    .replace(' ', '-');
            int before = seen.merge(name, 1, Integer::sum) - 1;
            names.add(before == 0 ? name : name + "-" + before);
        }
        return names;
    }

    @Test
    void everyLinkLeadsSomewhere() throws IOException {
        List<String> broken = new ArrayList<>();
        int count = 0;
        for (Path page : pages()) {
            Matcher link = LINK.matcher(withoutCode(page));
            while (link.find()) {
                String target = link.group(1);
                if (!target.startsWith("https://") && !target.startsWith("http://")) {
                    count++;
                    if (!leadsSomewhere(page, target)) {
                        broken.add(PROJECT.relativize(page) + ": " + target);
                    }
                }
            }
        }
        assertEquals(List.of(), broken);
        assertTrue(count > 100, "expected the pages to have links, got " + count);
    }

    private static boolean leadsSomewhere(Path page, String target) throws IOException {
        int hash = target.indexOf('#');
        String file = hash < 0 ? target : target.substring(0, hash);
        Path to = file.isEmpty() ? page : page.resolveSibling(file).normalize();
        return Files.exists(to) && (hash < 0 || headings(to).contains(target.substring(hash + 1)));
    }
}
