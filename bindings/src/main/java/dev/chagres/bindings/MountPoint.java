package dev.chagres.bindings;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * What the kernel says of mounted file systems.
 *
 * <p>Source: proc_pid_mountinfo(5).
 */
final class MountPoint {
    private static final int PLACE = 4;
    private static final int OPTIONS = 5;
    /** Blanks and backslashes in a mount point's name. */
    private static final Pattern OCTAL = Pattern.compile("\\\\([0-7]{3})");

    private MountPoint() {}

    /** The mount point of the file system of {@code file}, if code on it cannot run; empty where that is unknown, too. */
    static Optional<Path> noExec(Path file, Surroundings surroundings) {
        try {
            Path real = existing(file.toAbsolutePath()).toRealPath();
            List<String> lines =
                    Files.readAllLines(surroundings.absolute("/proc/self/mountinfo"), StandardCharsets.ISO_8859_1);
            Path place = Path.of("/");
            boolean isNoExec = false;
            for (String line : lines) {
                String[] fields = line.split(" ", OPTIONS + 2);
                Path mounted = fields.length > OPTIONS ? Path.of(unescaped(fields[PLACE])) : null;
                if (mounted != null && real.startsWith(mounted) && mounted.getNameCount() >= place.getNameCount()) {
                    place = mounted; // A later line is mounted over an earlier one.
                    isNoExec = List.of(fields[OPTIONS].split(",", -1)).contains("noexec");
                }
            }
            return isNoExec ? Optional.of(place) : Optional.empty();
        } catch (IOException unknown) {
            return Optional.empty();
        }
    }

    private static Path existing(Path path) {
        Path found = path;
        while (!Files.exists(found) && found.getParent() != null) {
            found = found.getParent();
        }
        return found;
    }

    private static String unescaped(String field) {
        String bytes = OCTAL.matcher(field).replaceAll(match -> {
            char character = (char) Integer.parseInt(match.group(1), 8);
            return Matcher.quoteReplacement(String.valueOf(character));
        });
        return new String(bytes.getBytes(StandardCharsets.ISO_8859_1), StandardCharsets.UTF_8);
    }
}
