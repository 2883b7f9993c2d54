package dev.chagres.launch;

import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import java.io.IOException;
import java.io.Serial;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystemNotFoundException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.CodeSource;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import java.util.zip.CRC32C;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import org.jspecify.annotations.Nullable;

/**
 * One run of a body on the rank that this process is.
 *
 * <p>Threading: confined.
 */
final class ProcessRun {
    private static final int NO_BYTES = 0;

    private ProcessRun() {}

    static <T> T result(RankProcess process, String what, CommunicatorConfig config, Rank.Body<T> body) {
        int rank = process.rank();
        try (Device device = Device.open(device(process))) {
            byte[] made = rank == 0 ? UniqueId.create().toBytes() : new byte[NO_BYTES];
            String build = LibraryBuild.text();
            RankEnvironment environment = process.meet();
            try (TcpStore store = TcpStore.join(environment, build, what, made, config.timeout())) {
                return runBody(environment, store, device, config, body);
            }
        }
    }

    /** A launcher may show each process one GPU alone; then that is its device, whatever its rank. */
    private static int device(RankProcess process) {
        int devices = Device.count();
        int local = devices == 1 ? 0 : process.localRank();
        if (local >= devices) {
            throw new IllegalStateException(
                    "rank " + process.rank() + ": expected a device for each rank of this host, got " + devices
                            + " devices, and local rank " + local + " from " + process.launcher());
        }
        return local;
    }

    /** Tells of a rank that failed when this one had finished; -1 where nobody knows which it was. */
    static RankFailedException afterwards(int rank, TcpStore.Failure failed) {
        boolean known = failed.rank() >= 0;
        return new RankFailedException(
                (known ? "rank " + failed.rank() : "a rank") + " failed after rank " + rank + " had finished: "
                        + failed.text(),
                known ? List.of(failed.rank()) : List.of(),
                null);
    }

    private static <T> T runBody(
            RankEnvironment environment, TcpStore store, Device device, CommunicatorConfig config, Rank.Body<T> body) {
        UniqueId id = UniqueId.of(store.shared());
        store.listener(new PeerStatus.Listener() {
            @Override
            public void failed(int other, String text) {
                id.fail(other, new RankEndedException(text));
            }

            @Override
            public void decided() {
                id.goOn();
            }
        });
        store.answering(id::answer);
        id.askThrough(store::ask);
        store.hearing(id::hear);
        id.tellThrough(store::call);
        id.agreeThrough(store);
        int rank = environment.rank();
        int count = environment.count();
        try (Communicator communicator = Communicator.open(device, id, count, rank, config)) {
            T result = body.run(new Rank(rank, count, device, communicator));
            device.synchronize();
            store.done();
            // A communicator that is closed while a peer still works is an error there.
            TcpStore.Failure failed = store.awaitAll();
            if (failed != null) {
                throw afterwards(rank, failed);
            }
            return result;
        } catch (RankFailedException other) {
            // Else the others would take this rank's end for the cause.
            int blamed = other.ranks().isEmpty() ? -1 : other.ranks().getFirst();
            store.fail(blamed, "as rank " + rank + " says: " + other.getMessage());
            throw other;
        } catch (Throwable thrown) {
            store.fail(rank, Checks.describe(thrown));
            throw new RankFailedException(
                    "rank " + rank + " of " + count + " failed: " + Checks.describe(thrown), List.of(rank), thrown);
        }
    }

    /** What this process has heard of a rank in another one that failed. */
    private static final class RankEndedException extends RuntimeException {
        @Serial
        private static final long serialVersionUID = 1;

        RankEndedException(String message) {
            super(message, null, false, false);
        }

        @Override
        public String toString() {
            return String.valueOf(getMessage());
        }
    }

    /**
     * Identifies the build of this library and of NCCL that a process runs: ranks of different builds are incompatible.
     */
    static final class LibraryBuild {
        private static final String CLASS = ".class";

        private LibraryBuild() {}

        /** Returns a text that is equal in processes with the same classes and the same NCCL. */
        static String text() {
            return "classes " + classes() + ", " + Provider.current().label() + " with NCCL " + UniqueId.ncclVersion();
        }

        /** Returns a checksum of all classes of this library; in a runtime image, the module's version. */
        private static String classes() {
            try {
                Path place = place();
                if (place == null) {
                    return "of " + LibraryBuild.class.getModule();
                }
                CRC32C checksum = new CRC32C();
                for (String line : Files.isDirectory(place) ? ofFolder(place) : ofJar(place)) {
                    checksum.update(line.getBytes(StandardCharsets.UTF_8));
                }
                return Long.toHexString(checksum.getValue());
            } catch (IOException e) {
                throw new IllegalStateException("the library's own classes cannot be read: " + e.getMessage(), e);
            }
        }

        private static @Nullable Path place() {
            CodeSource source = LibraryBuild.class.getProtectionDomain().getCodeSource();
            if (source == null || source.getLocation() == null) {
                return null;
            }
            try {
                Path place = Path.of(source.getLocation().toURI());
                return Files.exists(place) ? place : null;
            } catch (URISyntaxException | FileSystemNotFoundException | IllegalArgumentException notAFile) {
                return null;
            }
        }

        private static List<String> ofFolder(Path folder) throws IOException {
            List<Path> files;
            try (Stream<Path> all = Files.walk(folder)) {
                files = all.filter(file -> file.toString().endsWith(CLASS)).toList();
            }
            List<String> lines = new ArrayList<>();
            for (Path file : files) {
                CRC32 checksum = new CRC32();
                checksum.update(Files.readAllBytes(file));
                lines.add(folder.relativize(file) + " " + checksum.getValue());
            }
            return lines.stream().sorted().toList();
        }

        /** A jar has its files' checksums. */
        private static List<String> ofJar(Path jar) throws IOException {
            try (ZipFile file = new ZipFile(jar.toFile())) {
                return file.stream()
                        .filter(entry -> entry.getName().endsWith(CLASS))
                        .map(LibraryBuild::line)
                        .sorted()
                        .toList();
            }
        }

        private static String line(ZipEntry entry) {
            return entry.getName() + " " + entry.getCrc();
        }
    }
}
