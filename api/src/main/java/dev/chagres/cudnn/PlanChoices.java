package dev.chagres.cudnn;

import dev.chagres.Device;
import dev.chagres.bindings.FileOwnership;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import dev.chagres.internal.FileReplacement;
import dev.chagres.internal.Log;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Engines that were measured, by graph: a later plan of the same graph, on a GPU of the same kind, with the same cuDNN and options, takes
 * the same engine with the same knobs without measuring. In memory, or in a file that later processes read.
 *
 * <p>A file is text: {@value #HEADER}, a line a graph, and the SHA-256 of these. One that is damaged, has another header, or that another
 * user may have written is left out with a warning; the next choice replaces a damaged one. Two processes that write at once lose no
 * file, but the choices of one.
 *
 * {@snippet file="dev/chagres/cudnn/PlanChoicesTest.java" region="choices"}
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code CUDNN_ATTR_ENGINE_GLOBAL_INDEX} and {@code CUDNN_ATTR_ENGINECFG_KNOB_CHOICES} of {@code cudnn_graph.h}.
 */
public final class PlanChoices {
    /** Engines that are measured for a graph at most. */
    static final int MOST = 8;

    private static final String HEADER = "chagres cudnn choices 1";
    private static final String CHECKSUM = "sha256 ";

    private final @Nullable Path file;
    private final Map<String, Choice> choices = new TreeMap<>();
    private boolean isTrusted = true;

    private PlanChoices(@Nullable Path file) {
        this.file = file;
    }

    /** A knob of an engine and what it is turned to. */
    record Knob(int type, long value) {
        static String text(List<Knob> knobs) {
            return knobs.isEmpty() ? "none" : knobs.stream().map(Knob::toString).collect(Collectors.joining(", "));
        }

        @Override
        public String toString() {
            return "knob " + type + " = " + value;
        }
    }

    /** An engine with its knobs. */
    record Choice(long engine, List<Knob> knobs) {
        Choice {
            knobs = List.copyOf(knobs);
        }

        String line() {
            return engine
                    + knobs.stream()
                            .map(knob -> " " + knob.type() + ":" + knob.value())
                            .collect(Collectors.joining());
        }

        /** Reads a line; a word that is no number throws a NumberFormatException. */
        static Choice of(String line) {
            String[] words = line.split(" ", -1);
            List<Knob> knobs = new ArrayList<>();
            for (int i = 1; i < words.length; i++) {
                int colon = words[i].indexOf(':');
                knobs.add(new Knob(
                        Integer.parseInt(words[i].substring(0, Math.max(0, colon))),
                        Long.parseLong(words[i].substring(colon + 1))));
            }
            return new Choice(Long.parseLong(words[0]), knobs);
        }

        @Override
        public String toString() {
            return "engine " + engine + ", " + Knob.text(knobs);
        }
    }

    /** Choices that are kept while this object lives. */
    public static PlanChoices inMemory() {
        return new PlanChoices(null);
    }

    /**
     * Choices that are kept in a file, which need not be there yet; its folder must.
     *
     * @throws IllegalArgumentException when the folder is not there
     */
    public static PlanChoices of(Path file) {
        Path folder = Checks.given("file", file).toAbsolutePath().getParent();
        if (folder == null || !Files.isDirectory(folder)) {
            throw new IllegalArgumentException("file: expected one in a folder that is there, got " + file);
        }
        PlanChoices read = new PlanChoices(file);
        read.read(file);
        return read;
    }

    private void read(Path from) {
        if (!Files.exists(from)) {
            return;
        }
        Optional<String> distrust = FileOwnership.distrust(from);
        if (distrust.isPresent()) {
            isTrusted = false;
            warn(from + " is not read, and nothing is kept there: " + distrust.get());
            return;
        }
        try {
            parse(Files.readString(from));
        } catch (IOException | IllegalArgumentException damaged) {
            choices.clear();
            warn(from + " is left out, and replaced by the next choice: " + damaged.getMessage());
        }
    }

    private void parse(String text) {
        int end = text.lastIndexOf(CHECKSUM);
        if (end < 0 || !text.substring(end).strip().equals(CHECKSUM + sha256(text.substring(0, end)))) {
            throw new IllegalArgumentException("its last line is not the SHA-256 of what it says");
        }
        List<String> lines = text.substring(0, end).lines().toList();
        if (!lines.getFirst().equals(HEADER)) {
            throw new IllegalArgumentException("expected " + HEADER + " in its first line, got " + lines.getFirst());
        }
        for (String line : lines.subList(1, lines.size())) {
            int space = line.indexOf(' ');
            choices.put(line.substring(0, Math.max(0, space)), Choice.of(line.substring(space + 1)));
        }
    }

    private static void warn(String text) {
        Log.logger().log(System.Logger.Level.WARNING, "cuDNN's measured engines: " + text);
    }

    /** Returns what a choice is kept under. */
    String key(OperationGraph graph, Device device, PlanOptions options) {
        return sha256(surroundings(graph, device) + "\n" + options.limits());
    }

    /** Returns the SHA-256 of a graph, and of the GPU and the cuDNN for which it is planned. */
    static String surroundings(OperationGraph graph, Device device) {
        return sha256(Provider.current() + " " + Cudnn.cudnnGetVersion() + " " + device.name() + " "
                + device.multiprocessorCount() + "\n" + graph.described());
    }

    @Nullable
    synchronized Choice find(String key) {
        return choices.get(key);
    }

    /** Keeps a choice, and writes the file; where that fails the plan is none the worse. */
    synchronized void keep(String key, Choice choice) {
        choices.put(key, choice);
        Path to = file;
        if (to == null || !isTrusted) {
            return;
        }
        String lines = HEADER + "\n"
                + choices.entrySet().stream()
                        .map(entry -> entry.getKey() + " " + entry.getValue().line() + "\n")
                        .collect(Collectors.joining());
        byte[] bytes = (lines + CHECKSUM + sha256(lines) + "\n").getBytes(StandardCharsets.UTF_8);
        try {
            FileReplacement.write(to, "choices", channel -> {
                ByteBuffer left = ByteBuffer.wrap(bytes);
                while (left.hasRemaining()) {
                    channel.write(left);
                }
            });
        } catch (IOException failed) {
            warn(to + " cannot be written: " + failed);
        }
    }

    static String sha256(String text) {
        try {
            return HexFormat.of()
                    .formatHex(MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8)));
        } catch (NoSuchAlgorithmException missing) {
            throw new IllegalStateException("every JDK has SHA-256", missing);
        }
    }

    /** Returns the file, or that there is none. */
    @Override
    public String toString() {
        return file == null ? "memory" : file.toString();
    }
}
