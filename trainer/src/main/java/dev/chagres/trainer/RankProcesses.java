package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.launch.RankVariables;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * The processes of a run, each a rank: started alike, ended together.
 *
 * <p>Threading: one thread at a time.
 */
final class RankProcesses implements AutoCloseable {
    /** The variable with the number of restarts before this start, as torchrun's TORCHELASTIC_RESTART_COUNT. */
    static final String RESTART_COUNT = "CHAGRES_RESTART_COUNT";

    /** How long ranks may take to learn that one has failed, and to end by themselves. */
    private static final long LEARNING_SECONDS = 5;
    /** How long they may take when they are told to end. */
    private static final long GRACE_SECONDS = 10;
    /** How long what ended ranks have written may take to be shown: it lies in pipes, unless other processes hold these open. */
    private static final long SHOWING_SECONDS = 2;
    /** How long a step may take to end after Ctrl-C. */
    private static final long PATIENCE_SECONDS = 120;

    private static final int SIGNALLED = 128;
    /** Arguments of this JVM by which it listens on a port, which no other one then can. */
    private static final List<String> LISTENING =
            List.of("-agentlib:jdwp", "-Xrunjdwp", "-Dcom.sun.management.jmxremote.port");

    private final PrintStream err;
    private final List<Process> processes = new ArrayList<>();
    private final List<Thread> readers = new ArrayList<>();
    private final BlockingQueue<Integer> ended = new LinkedBlockingQueue<>();
    private final Thread onInterrupt = new Thread(this::interrupt, "ctrl-c");
    /** Lines of the program's own errors. */
    private final Set<String> told = ConcurrentHashMap.newKeySet();

    private @Nullable RankVariables variables;
    private volatile boolean interrupted;

    /** Starts ranks, with a port and a secret of their own, after so many restarts, where {@code numa} says. */
    RankProcesses(int count, int restarts, Class<?> program, List<String> arguments, NumaBinding numa, PrintStream err)
            throws IOException {
        this.err = err;
        try {
            Runtime.getRuntime().addShutdownHook(onInterrupt);
        } catch (IllegalStateException _) {
            interrupted = true; // The JVM is ending: nothing is started any more.
            return;
        }
        try {
            start(count, restarts, program, arguments, numa);
        } catch (IOException | RuntimeException failed) {
            close();
            throw failed;
        }
    }

    private void start(int count, int restarts, Class<?> program, List<String> arguments, NumaBinding numa)
            throws IOException {
        RankVariables meeting = RankVariables.ofThisHost(count);
        variables = meeting;
        for (int rank = 0; rank < count; rank++) {
            var builder = new ProcessBuilder(command(program, arguments)).inheritIO();
            Map<String, String> environment = builder.environment();
            environment.put(
                    LauncherWatch.LAUNCHER,
                    Long.toString(ProcessHandle.current().pid()));
            environment.putAll(meeting.of(rank));
            environment.put(RESTART_COUNT, Integer.toString(restarts));
            int cores = Runtime.getRuntime().availableProcessors();
            int threads = numa.isBound() ? numa.threads(rank) : Math.max(1, cores / count);
            environment.putIfAbsent("CHAGRES_THREADS", Integer.toString(threads));
            if (numa.isBound()) {
                environment.put(NumaBinding.NUMA, numa.toString());
            }
            if (rank > 0) {
                builder.redirectInput(
                        ProcessBuilder.Redirect.from(Path.of("/dev/null").toFile()));
                builder.redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(ProcessBuilder.Redirect.PIPE);
            }
            synchronized (processes) {
                if (interrupted) {
                    return;
                }
                add(rank, numa.start(rank, builder::start));
            }
        }
    }

    private static List<String> command(Class<?> program, List<String> arguments) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        ManagementFactory.getRuntimeMXBean().getInputArguments().stream()
                .filter(argument -> LISTENING.stream().noneMatch(argument::startsWith))
                .forEach(command::add);
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), program.getName()));
        command.addAll(arguments);
        return command;
    }

    private void add(int rank, Process process) {
        processes.add(process);
        var _ = process.onExit().thenRun(() -> ended.add(rank));
        if (rank > 0) {
            readers.add(Thread.ofPlatform().daemon().name("rank-" + rank).start(() -> show(rank, process)));
        }
    }

    private void show(int rank, Process process) {
        try (BufferedReader lines = process.errorReader()) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                // What ranks say alike of their common options and files is said once.
                if (!line.startsWith("train: ") || told.add(line)) {
                    err.println("[rank " + rank + "] " + ForeignText.lines(line));
                }
            }
        } catch (IOException _) {
            // The process has ended.
        }
    }

    /** Waits for all ranks; ends them when one fails, and returns the exit status of the first that did. */
    int await() throws InterruptedException {
        int status = 0;
        long end = System.nanoTime() + Long.MAX_VALUE / 2;
        for (int left = processes.size(); left > 0; ) {
            Integer rank = ended.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (rank == null) {
                if (!interrupted) { // Else they end after the step under way, with what they save.
                    endAll();
                }
                end = System.nanoTime() + TimeUnit.SECONDS.toNanos(GRACE_SECONDS);
                continue;
            }
            left--;
            int own = processes.get(rank).exitValue();
            if (own != 0 && status == 0) {
                status = own;
                end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LEARNING_SECONDS);
                if (!interrupted) {
                    err.println("launch: rank " + rank + " of " + processes.size() + " failed with exit status " + own
                            + (own > SIGNALLED ? " (signal " + (own - SIGNALLED) + ")" : "") + "; the others end");
                }
            }
        }
        long shown = System.nanoTime() + TimeUnit.SECONDS.toNanos(SHOWING_SECONDS);
        for (Thread reader : readers) {
            var _ = reader.join(Duration.ofNanos(Math.max(0, shown - System.nanoTime())));
        }
        return status;
    }

    /** Returns whether Ctrl-C or a signal ends this program. */
    boolean isInterrupted() {
        return interrupted;
    }

    /** Asks the ranks that are left to end, and ends them where they do not. */
    private void endAll() throws InterruptedException {
        processes.forEach(Process::destroy);
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(GRACE_SECONDS);
        for (Process process : processes) {
            if (!process.waitFor(Math.max(0, until - System.nanoTime()), TimeUnit.NANOSECONDS)) {
                process.destroyForcibly();
            }
        }
    }

    /** Runs in the JVM's hook thread. A terminal tells the ranks of Ctrl-C as well, who sends a signal to this process does not. */
    private void interrupt() {
        synchronized (processes) {
            interrupted = true; // no more are started
        }
        processes.forEach(Process::destroy);
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        try {
            for (Process process : processes) {
                if (!process.waitFor(Math.max(0, until - System.nanoTime()), TimeUnit.NANOSECONDS)) {
                    process.destroyForcibly();
                }
            }
        } catch (InterruptedException _) {
            processes.forEach(Process::destroyForcibly);
        }
    }

    @Override
    public void close() {
        processes.forEach(Process::destroyForcibly);
        if (variables != null) {
            variables.close();
        }
        try {
            Runtime.getRuntime().removeShutdownHook(onInterrupt);
        } catch (IllegalStateException _) {
            // The JVM is ending: this is the case the hook is for.
        }
    }

    /**
     * Ends a rank whose launcher has gone without a word, as SIGKILL does it: after the step under way where that is quick, else at once.
     *
     * <p>Threading: thread-safe.
     */
    static final class LauncherWatch {
        /** The variable with the launcher's process. */
        static final String LAUNCHER = "CHAGRES_LAUNCHER";

        private static final long LOOK_NANOS = TimeUnit.MILLISECONDS.toNanos(200);
        private static final long GRACE_NANOS = TimeUnit.SECONDS.toNanos(1);
        /** As after SIGTERM. */
        private static final int STATUS = 143;

        private LauncherWatch() {}

        /** Begins, where {@code ./chagres launch} has started this process. */
        static void begin() {
            String launcher = System.getenv(LAUNCHER);
            if (launcher != null) {
                long expected = Long.parseLong(launcher.strip());
                Thread.ofPlatform().daemon().name("chagres-launcher-watch").start(() -> watch(expected));
            }
        }

        private static void watch(long launcher) {
            // A process whose parent has ended gets another one.
            while (parent() == launcher) {
                LockSupport.parkNanos(LOOK_NANOS);
            }
            System.err.println("train: the launcher, process " + launcher + ", has ended; this rank ends");
            Thread.ofPlatform().daemon().name("chagres-exit").start(() -> System.exit(STATUS));
            LockSupport.parkNanos(GRACE_NANOS);
            Runtime.getRuntime().halt(STATUS);
        }

        private static long parent() {
            return ProcessHandle.current().parent().map(ProcessHandle::pid).orElse(0L);
        }
    }
}
