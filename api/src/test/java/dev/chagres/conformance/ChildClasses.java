package dev.chagres.conformance;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;

/**
 * The classes of this process for those that a test starts, which begin in two thirds of the time: as jars, with an archive of what a
 * first program has loaded. Both are made once in a build, and anew where classes have changed.
 */
public final class ChildClasses {
    private static final Path NATIVES = Path.of("dev", "chagres", "native", "linux-x86_64");

    private final Path folder;
    private final List<String> options = new ArrayList<>();
    private final List<String> path = new ArrayList<>();

    /**
     * @param java which starts the program, with its options
     * @param program that loads the classes and ends by itself, with its arguments
     */
    private ChildClasses(List<String> java, List<String> program) {
        String natives = System.getProperty("chagres.native.path");
        if (natives != null) {
            options.add("-Dchagres.native.path=" + natives);
        }
        folder = Path.of("target", "child-classes", program.getFirst()).toAbsolutePath();
        List<Path> folders = new ArrayList<>();
        var stamp = new StringBuilder(String.join(" ", java) + program);
        for (String entry : System.getProperty("java.class.path").split(":")) {
            Path place = Path.of(entry).toAbsolutePath();
            if (natives == null && Files.isDirectory(place.resolve(NATIVES))) {
                options.add("-Dchagres.native.path=" + place.resolve(NATIVES));
            } else if (Files.isDirectory(place)) {
                path.add(folder.resolve(folders.size() + ".jar").toString());
                folders.add(place);
            } else if (Files.exists(place)) {
                path.add(entry);
            }
            stamp.append(' ').append(place);
        }
        Path archive = folder.resolve("classes.jsa");
        try {
            Files.createDirectories(folder);
            try (FileChannel lock = FileChannel.open(
                            folder.resolve("lock"), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
                    var _ = lock.lock()) { // The build's other JVM waits.
                for (Path classes : folders) {
                    walk(classes, (file, size) -> stamp.append(' ').append(size.lastModifiedTime()));
                }
                Path made = folder.resolve("stamp");
                if (!Files.exists(made) || !Files.readString(made).contentEquals(stamp)) {
                    Files.deleteIfExists(made);
                    Files.deleteIfExists(archive);
                    for (int i = 0; i < folders.size(); i++) {
                        pack(folders.get(i), folder.resolve(i + ".jar"));
                    }
                    load(java, archive, program);
                    Files.writeString(made, stamp);
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
        if (Files.exists(archive)) {
            options.add("-XX:SharedArchiveFile=" + archive);
        }
    }

    /** Makes them, or finds them. */
    public static ChildClasses of(List<String> java, List<String> program) {
        return new ChildClasses(java, program);
    }

    /** Returns options of the JVM, the class path among them. */
    public List<String> options() {
        List<String> all = new ArrayList<>(options);
        all.add("-cp");
        all.add(String.join(":", path));
        return all;
    }

    private void load(List<String> java, Path archive, List<String> program) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(java);
        command.add("-XX:ArchiveClassesAtExit=" + archive);
        command.addAll(options());
        command.addAll(program);
        new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(folder.resolve("log").toFile())
                .start()
                .waitFor();
    }

    private static void pack(Path classes, Path jar) throws IOException {
        try (var out = new ZipOutputStream(Files.newOutputStream(jar))) {
            out.setLevel(1);
            walk(classes, (file, _) -> {
                out.putNextEntry(new ZipEntry(classes.relativize(file).toString()));
                Files.copy(file, out);
                out.closeEntry();
            });
        }
    }

    @FunctionalInterface
    private interface Visit {
        void file(Path file, BasicFileAttributes attributes) throws IOException;
    }

    private static void walk(Path classes, Visit visit) throws IOException {
        Files.walkFileTree(classes, new SimpleFileVisitor<>() {
            @Override
            public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
                visit.file(file, attributes);
                return FileVisitResult.CONTINUE;
            }
        });
    }
}
