package dev.chagres.jmh;

import dev.chagres.launch.Rank;
import dev.chagres.launch.RankVariables;
import dev.chagres.launch.Ranks;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Ranks that are processes of {@link LayerProcess}: a line to each begins steps, a line from each says that they are done. */
final class ProcessTeam implements LayerTeam {
    /** What a process reads and writes. */
    static final String READY = "ready";

    static final String STEP = "step";
    static final String DONE = "done";

    private record Running(int rank, Process process, BufferedWriter to, BufferedReader from) {}

    private final List<Running> ranks = new ArrayList<>();

    /** As {@link LayerTeam#start}. */
    ProcessTeam(int count, int steps, LayerSetup setup) throws IOException {
        try (RankVariables variables = RankVariables.ofThisHost(count)) {
            for (int rank = 0; rank < count; rank++) {
                ProcessBuilder builder =
                        new ProcessBuilder(command(steps, setup)).redirectError(ProcessBuilder.Redirect.INHERIT);
                builder.environment().putAll(variables.of(rank));
                Process process = builder.start();
                ranks.add(new Running(rank, process, process.outputWriter(), process.inputReader()));
            }
            awaitAll(READY);
        }
    }

    private static List<String> command(int steps, LayerSetup setup) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), LayerProcess.class.getName()));
        command.add(Integer.toString(steps));
        command.addAll(setup.arguments());
        return command;
    }

    private void awaitAll(String expected) {
        try {
            for (Running rank : ranks) {
                await(rank, expected);
            }
        } catch (IOException failed) {
            ranks.forEach(one -> one.process.destroyForcibly());
            throw new UncheckedIOException(failed);
        }
    }

    /** Waits for a line; what the process says before it is shown. */
    private static void await(Running rank, String expected) throws IOException {
        for (String line = rank.from.readLine(); !expected.equals(line); line = rank.from.readLine()) {
            if (line == null) {
                throw new IOException(
                        "rank " + rank.rank + ": expected \"" + expected + "\", got the end of its output");
            }
            System.out.println(line);
        }
    }

    @Override
    public void step() {
        try {
            for (Running rank : ranks) {
                rank.to.write(STEP + "\n");
                rank.to.flush();
            }
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
        awaitAll(DONE);
    }

    @Override
    public void end() throws InterruptedException {
        for (Running rank : ranks) {
            try {
                rank.to.close();
            } catch (IOException failed) {
                throw new UncheckedIOException(failed);
            }
        }
        for (Running rank : ranks) {
            int status = rank.process.waitFor();
            if (status != 0) {
                throw new IllegalStateException("rank " + rank.rank + ": expected exit status 0, got " + status);
            }
        }
    }

    /** One rank of {@link ProcessTeam}: makes steps whenever a line of its input says so, and ends with its input. */
    static final class LayerProcess {
        private LayerProcess() {}

        /** {@code arguments}: how many steps a line begins, then those of {@link LayerSetup}. */
        public static void main(String[] arguments) {
            int steps = Integer.parseInt(arguments[0]);
            LayerSetup setup = LayerSetup.of(Arrays.copyOfRange(arguments, 1, arguments.length));
            Ranks.fromEnvironment().each(rank -> follow(rank, setup, steps));
        }

        private static void follow(Rank rank, LayerSetup setup, int steps) {
            BufferedReader told = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            try (LayerStack layers = setup.open(rank)) {
                if (rank.index() == 0) {
                    System.out.println(layers);
                }
                System.out.println(ProcessTeam.READY);
                while (ProcessTeam.STEP.equals(told.readLine())) {
                    for (int i = 0; i < steps; i++) {
                        layers.run();
                    }
                    layers.await();
                    System.out.println(ProcessTeam.DONE);
                }
            } catch (IOException failed) {
                throw new UncheckedIOException(failed);
            }
        }
    }
}
