package dev.chagres.trainer.command;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.ForeignText;
import dev.chagres.io.AtomicFile;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/**
 * Options of a command that writes lines of JSON about proteins, to a file or to standard output.
 *
 * <p>Threading: one thread at a time.
 */
final class JsonLines {
    @Option(
            names = "--out",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE.jsonl",
            description = "the file to write (default: standard output)")
    private @Nullable Path path;

    @Option(
            names = "--long",
            converter = LongSequences.Words.class,
            paramLabel = "refuse|cut",
            description = "what becomes of proteins longer than --context (default: refuse)")
    private LongSequences longer = LongSequences.REFUSE;

    /** Where lines go. */
    interface Lines {
        void add(Map<String, Object> line) throws IOException;
    }

    /** What makes the lines. */
    interface Work {
        /** Returns how many tokens it has computed. */
        long run(Lines lines, ProgressLine progress) throws IOException;
    }

    /** Returns the file; null: standard output. */
    @Nullable
    Path path() {
        return path;
    }

    /** Checks the options beside those of the model. */
    void check(ModelOptions model) {
        FileChecks.requireName("--out", path);
        model.requireOthers("--out", path);
        if (longer == LongSequences.WINDOWS) {
            throw new IllegalArgumentException("--long: expected refuse or cut, got windows");
        }
    }

    /** Looks at the proteins. */
    Proteins proteins(FastaOptions fasta, int context) throws IOException {
        return Proteins.of(fasta.source(), context, longer, LongSequences.CUT);
    }

    /** Writes the lines, all or none where they go to a file, and says what was done. */
    void write(ProteinCommand command, Proteins proteins, String what, Work work) throws IOException {
        try (ProgressLine progress = new ProgressLine(command.err(), "proteins", proteins.count());
                AtomicFile file = path == null ? null : AtomicFile.create(path)) {
            long tokens = work.run(
                    line -> {
                        requireFinite(line, line);
                        String text = Objects.requireNonNull(JSON.std.asString(line)) + "\n";
                        if (file == null) {
                            command.out().print(text);
                        } else {
                            file.append(text.getBytes(StandardCharsets.UTF_8));
                        }
                    },
                    progress);
            proteins.tellUnknown(file == null ? command.err() : command.out());
            if (file != null) {
                file.publish();
                command.out()
                        .printf(
                                Locale.ROOT,
                                "%s, %,d tokens in %.1f s%n%s: %s%n",
                                proteins.text(),
                                tokens,
                                progress.seconds(),
                                what,
                                path);
            }
        }
    }

    /** Refuses numbers that JSON does not have. */
    private static void requireFinite(Map<String, Object> line, @Nullable Object value) {
        switch (value) {
            case Map<?, ?> all -> all.values().forEach(one -> requireFinite(line, one));
            case List<?> all -> all.forEach(one -> requireFinite(line, one));
            case Double number
            when !Double.isFinite(number) ->
                throw new CommandFailure(
                        "--model: expected finite numbers of protein " + ForeignText.plain(line.getOrDefault("id", ""))
                                + ", got " + number + "; look for weights that are not finite, or try --dtype fp32");
            case null, default -> {}
        }
    }

    /** Returns the exit status of a command: 1 also where lines could not be printed. */
    int status(int status, String command, PrintStream out, PrintStream err) {
        return path == null ? CommandStart.printed(status, command, out, err) : status;
    }
}
