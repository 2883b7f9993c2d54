package dev.chagres.bindings;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/** Folders where pip puts packages: the active environment's, what {@code python3} says, the user's, the system's. */
final class PythonFolders {

    private static final int TIME_LIMIT_SECONDS = 5;
    private static final String QUESTION =
            "import site, sys; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()] + sys.path))";

    private static final Pattern STANDARD_LIBRARY =
            Pattern.compile(".*/(python3\\.\\d+|lib-dynload|python3\\d+\\.zip)");

    private PythonFolders() {}

    /** Every folder that exists, each with the words that say where it comes from, in the order of the search. */
    static Map<Path, String> of(Surroundings surroundings) {
        Map<Path, String> folders = new LinkedHashMap<>();
        for (String variable : List.of("VIRTUAL_ENV", "CONDA_PREFIX")) {
            surroundings
                    .variable(variable)
                    .ifPresent(prefix -> addVersions(folders, Path.of(prefix).resolve("lib"), variable));
        }
        surroundings.python().get().forEach(folder -> add(folders, folder, "python3"));
        surroundings.home().ifPresent(home -> addVersions(folders, home.resolve(".local/lib"), "user's Python"));
        addVersions(folders, surroundings.absolute("/usr/local/lib"), "system's Python");
        add(folders, surroundings.absolute("/usr/lib/python3/dist-packages"), "system's Python");
        addVersions(folders, surroundings.absolute("/usr/lib"), "system's Python");
        return folders;
    }

    private static void add(Map<Path, String> folders, Path folder, String origin) {
        if (Files.isDirectory(folder)) {
            folders.putIfAbsent(folder, origin);
        }
    }

    private static void addVersions(Map<Path, String> folders, Path library, String origin) {
        List<Path> versions = new ArrayList<>();
        if (Files.isDirectory(library)) {
            try (DirectoryStream<Path> found = Files.newDirectoryStream(library, "python3*")) {
                found.forEach(versions::add);
            } catch (IOException unreadable) {
                return;
            }
        }
        versions.sort(null);
        for (Path version : versions.reversed()) {
            add(folders, version.resolve("site-packages"), origin);
            add(folders, version.resolve("dist-packages"), origin);
        }
    }

    /** What the {@code python3} of the PATH imports from, asked once; nothing when there is none or it does not answer. */
    static List<Path> ofInterpreter() {
        return Interpreter.FOLDERS;
    }

    private static final class Interpreter {
        static final List<Path> FOLDERS = ask();
    }

    private static List<Path> ask() {
        ProcessBuilder builder = new ProcessBuilder("python3", "-c", QUESTION)
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .redirectInput(ProcessBuilder.Redirect.from(Path.of("/dev/null").toFile()));
        try {
            Process python = builder.start();
            if (!python.waitFor(TIME_LIMIT_SECONDS, TimeUnit.SECONDS)) {
                python.destroyForcibly();
                return List.of();
            }
            String answer = new String(python.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            return answer.lines()
                    .filter(line -> line.startsWith("/")
                            && !STANDARD_LIBRARY.matcher(line).matches())
                    .map(Path::of)
                    .distinct()
                    .toList();
        } catch (IOException absent) {
            return List.of();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return List.of();
        }
    }
}
