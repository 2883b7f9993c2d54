package dev.chagres;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;

/** The packages that the module exports. */
final class Exports {
    private static final Pattern EXPORT = Pattern.compile("exports dev\\.chagres\\.?([a-z.]*);");

    private Exports() {}

    /** Returns the exported packages below {@code dev.chagres}, without that prefix; itself is the empty text. */
    static List<String> packages() {
        try {
            String module = Files.readString(Path.of("src/main/java/module-info.java"));
            return EXPORT.matcher(module).results().map(found -> found.group(1)).toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
