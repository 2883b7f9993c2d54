package dev.chagres.models.data;

import java.io.ByteArrayInputStream;
import java.io.FileNotFoundException;
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
 * Where FASTA records come from: opened anew for each pass over them.
 *
 * <p>Threading: immutable.
 */
public final class FastaSource {
    private static final String SHIPPED = "uniprot.fasta.gz";
    /** How much of the beginning, and of the end, tells a content from another one. */
    private static final int END_BYTES = 1 << 20;

    private final String name;
    private final boolean repeatable;
    private final Opener opener;
    /** Null where the content lies in memory or in a jar. */
    private final @Nullable Path file;

    private final Part part;

    /** Which of the records are taken. */
    private record Part(Records records, @Nullable HeldOut heldOut) {
        private static final Part ALL = new Part(Records.ALL, null);
    }

    /** Which of the records are taken. */
    private enum Records {
        ALL,
        HELD_OUT,
        OTHERS
    }

    /** Opens the bytes of a source from their beginning. */
    @FunctionalInterface
    interface Opener {
        InputStream open() throws IOException;
    }

    FastaSource(String name, boolean repeatable, Opener opener) {
        this(name, repeatable, opener, null, Part.ALL);
    }

    private FastaSource(String name, boolean repeatable, Opener opener, @Nullable Path file, Part part) {
        this.part = part;
        this.name = name;
        this.repeatable = repeatable;
        this.opener = opener;
        this.file = file;
    }

    /**
     * Returns the source that reads a file, plain or gz; nothing is opened yet.
     *
     * @param file the file's path
     */
    public static FastaSource of(Path file) {
        Opener opener = () -> {
            if (Files.isDirectory(file)) {
                throw new FastaException(file.toString(), "is a directory; name one FASTA file, plain or gz");
            }
            return Files.newInputStream(file);
        };
        return new FastaSource(file.toString(), Files.isRegularFile(file), opener, file, Part.ALL);
    }

    /**
     * Returns the source that reads what was read already, such as one record.
     *
     * @param name that errors begin with
     * @param content of a FASTA file, plain or gz
     */
    public static FastaSource of(String name, byte[] content) {
        byte[] own = content.clone();
        return new FastaSource(name, true, () -> new ByteArrayInputStream(own));
    }

    /** Returns the 398 sequences of UniProtKB/Swiss-Prot that travel with this module ({@code uniprot.txt} says more). */
    public static FastaSource shipped() {
        return new FastaSource(SHIPPED, true, () -> {
            InputStream stream = FastaSource.class.getResourceAsStream(SHIPPED);
            if (stream == null) {
                throw new FileNotFoundException("resource dev/chagres/models/data/" + SHIPPED);
            }
            return stream;
        });
    }

    /**
     * Returns the same without the sequences that are held out.
     *
     * @throws FastaException when it cannot be read twice, as a pipe
     * @throws IllegalStateException when this has a part of the sequences already
     */
    public FastaSource without(HeldOut heldOut) {
        return of(new Part(Records.OTHERS, heldOut));
    }

    /**
     * Returns the sequences of this that are held out.
     *
     * @throws FastaException when it cannot be read twice, as a pipe
     * @throws IllegalStateException when this has a part of the sequences already
     */
    public FastaSource only(HeldOut heldOut) {
        return of(new Part(Records.HELD_OUT, heldOut));
    }

    private FastaSource of(Part taken) {
        if (part.heldOut() != null) {
            throw new IllegalStateException("expected a source of all sequences, got " + name + taken());
        }
        ensureRepeatable();
        return new FastaSource(name, repeatable, opener, file, taken);
    }

    /**
     * Checks that the source can be read several times, as evaluation does.
     *
     * @throws FastaException when it is a pipe or a terminal
     */
    public void ensureRepeatable() {
        if (!repeatable && !isAbsent()) {
            throw new FastaException(name, "cannot be read twice, as evaluation does; save it as a file");
        }
    }

    /** Whether there is no file to read, which opening tells. */
    private boolean isAbsent() {
        return file != null && (Files.isDirectory(file) || !Files.exists(file));
    }

    /** Returns the name that errors begin with: the path as it was given. */
    public String name() {
        return name;
    }

    /**
     * Returns a text that tells this content from another one: its bytes, and a checksum of its first and last MiB, where a gz file has the
     * checksum of all. The file is not read as a whole. Of a pipe or a terminal it tells nothing but that.
     *
     * @throws FastaException when the file cannot be read
     */
    public String content() {
        if (!repeatable && !isAbsent()) {
            return "a pipe";
        }
        try (InputStream in = opener.open()) {
            if (file != null) {
                return content(in, Files.size(file)) + taken();
            }
            byte[] all = in.readAllBytes();
            return content(new ByteArrayInputStream(all), all.length) + taken();
        } catch (IOException e) {
            throw unreadable(name, e);
        }
    }

    /** Says which sequences are taken, where not all are. */
    private String taken() {
        HeldOut heldOut = part.heldOut();
        return heldOut == null
                ? ""
                : (part.records() == Records.OTHERS ? " without " : " of which only ") + heldOut.fraction()
                        + " of the sequences";
    }

    private static String content(InputStream in, long bytes) throws IOException {
        var checksum = new CRC32C();
        checksum.update(in.readNBytes(END_BYTES));
        in.skipNBytes(Math.max(0, bytes - 2L * END_BYTES));
        checksum.update(in.readNBytes(END_BYTES));
        return String.format("%d bytes of checksum %08x", bytes, checksum.getValue());
    }

    /** Whether a second {@link #open} begins at the first record again; false for pipes and terminals. */
    boolean isRepeatable() {
        return repeatable;
    }

    /**
     * Opens the source at its first byte.
     *
     * @throws FastaException when there is no such file, it is a directory, may not be read, or fails while its first
     *     bytes are read
     */
    public FastaReader open() {
        try {
            HeldOut heldOut = part.heldOut();
            boolean taken = part.records() == Records.HELD_OUT;
            return new FastaReader(
                    name,
                    opener.open(),
                    heldOut == null ? null : (residues, length) -> heldOut.holds(residues, length) == taken);
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
