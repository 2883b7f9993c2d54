package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Provider;
import dev.chagres.conformance.ChildJvm;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Ranks that are processes of a test, and what they write. */
public final class RankJvms implements AutoCloseable {
    private static final long HANGS_SECONDS = 300;

    private final Path folder;
    private final List<Process> processes = new ArrayList<>();
    private final RankVariables variables;

    /** Starts {@code count} ranks that run {@code program}. */
    public RankJvms(Path folder, int count, Class<?> program, String... arguments) throws IOException {
        this(folder, count, Map.of(), program, arguments);
    }

    /** Starts them with further variables. */
    public RankJvms(Path folder, int count, Map<String, String> environment, Class<?> program, String... arguments)
            throws IOException {
        this.folder = folder;
        List<String> options =
                List.of("-Dchagres.provider=" + Provider.current().label());
        // @start region="variables"
        variables = RankVariables.ofThisHost(count);
        for (int rank = 0; rank < count; rank++) {
            ProcessBuilder builder = ChildJvm.of(options, program, arguments);
            builder.environment().putAll(variables.of(rank));
            // @end
            builder.redirectOutput(file("out", rank).toFile());
            builder.redirectError(file("err", rank).toFile());
            builder.environment().put("CHAGRES_THREADS", "1");
            builder.environment().putAll(environment);
            processes.add(builder.start());
        }
    }

    private Path file(String kind, int rank) {
        return folder.resolve(kind + rank);
    }

    /** Returns the process of a rank. */
    public Process process(int rank) {
        return processes.get(rank);
    }

    /** Returns the last line that a rank has written, or what it has written to standard error. */
    public String last(int rank) throws IOException {
        List<String> lines = Files.readAllLines(file("out", rank));
        return lines.isEmpty() ? Files.readString(file("err", rank)) : lines.getLast();
    }

    /** Waits until every rank has written a line with {@code text}. */
    public void await(String text) throws IOException, InterruptedException {
        for (int rank = 0; rank < processes.size(); rank++) {
            while (!Files.readString(file("out", rank)).contains(text)) {
                assertTrue(processes.get(rank).isAlive(), "rank " + rank + " has ended: " + last(rank));
                TimeUnit.MILLISECONDS.sleep(5);
            }
        }
    }

    /** Waits until a rank ends with this exit status, however busy the machine is. */
    public void awaitEnd(int rank, int status) throws IOException, InterruptedException {
        Process process = processes.get(rank);
        if (!process.waitFor(HANGS_SECONDS, TimeUnit.SECONDS)) {
            new ProcessBuilder("kill", "-QUIT", Long.toString(process.pid()))
                    .start()
                    .waitFor();
            process.waitFor(1, TimeUnit.SECONDS); // It writes its stacks.
            throw new AssertionError("rank " + rank + " has not ended\n" + Files.readString(file("out", rank))
                    + Files.readString(file("err", rank)));
        }
        assertEquals(status, process.exitValue(), last(rank));
    }

    @Override
    public void close() {
        processes.forEach(Process::destroyForcibly);
        variables.close();
    }
}
