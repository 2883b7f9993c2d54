package dev.chagres.models.data;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * A FASTA file, or what is held in memory or in a jar.
 *
 * <p>Threading: immutable.
 *
 * @param name that errors begin with
 * @param repeatable whether it can be read twice
 * @param file null where there is none
 */
record FastaContent(
        String name,
        boolean repeatable,
        Opener opener,
        @Nullable Path file) {
    /** How much of the beginning, and of the end, tells a content from another one. */
    private static final int END_BYTES = 1 << 20;

    /** Opens the bytes of a source from their beginning. */
    @FunctionalInterface
    interface Opener {
        InputStream open() throws IOException;
    }

    static FastaContent of(Path file) {
        Opener opener = () -> {
            if (Files.isDirectory(file)) {
                throw new FastaException(file.toString(), "is a directory; name one FASTA file, plain or gz");
            }
            return Files.newInputStream(file);
        };
        return new FastaContent(file.toString(), Files.isRegularFile(file), opener, file);
    }

    /** Throws if it can be read once alone, as a pipe; not where there is nothing to read, which opening tells. */
    void ensureRepeatable() {
        if (isPipe()) {
            throw new FastaException(name, "cannot be read twice, as evaluation does; save it as a file");
        }
    }

    private boolean isPipe() {
        return !repeatable && (file == null || (Files.exists(file) && !Files.isDirectory(file)));
    }

    /** Returns a text that tells this content from another one. */
    String text() {
        if (isPipe()) {
            return "a pipe";
        }
        try (InputStream in = opener.open()) {
            if (file != null) {
                return text(in, Files.size(file));
            }
            byte[] all = in.readAllBytes();
            return text(new ByteArrayInputStream(all), all.length);
        } catch (IOException e) {
            throw unreadable(name, e);
        }
    }

    private static String text(InputStream in, long bytes) throws IOException {
        var checksum = new CRC32C();
        checksum.update(in.readNBytes(END_BYTES));
        in.skipNBytes(Math.max(0, bytes - 2L * END_BYTES));
        checksum.update(in.readNBytes(END_BYTES));
        return String.format("%d bytes of checksum %08x", bytes, checksum.getValue());
    }

    /** Opens it at its first byte. */
    FastaRecords open(Letters letters, UnknownLetters unknown) {
        try {
            return new FastaRecords(name, opener.open(), letters, unknown);
        } catch (IOException e) {
            throw unreadable(name, e);
        }
    }

    /** Says in one line why a file cannot be opened or read. */
    static FastaException unreadable(String name, IOException e) {
        String problem = switch (e) {
            case NoSuchFileException missing -> "there is no such file";
            case AccessDeniedException denied -> "no permission to read it; see ls -l, chmod";
            case FileSystemException system when system.getReason() != null -> "cannot be read: " + system.getReason();
            default -> "cannot be read: " + (e.getMessage() == null ? e.toString() : e.getMessage());
        };
        return new FastaException(name, problem, e);
    }
}
