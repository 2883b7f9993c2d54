package dev.chagres.trainer;

import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.EnumOption;
import java.io.IOException;
import java.io.PrintStream;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/**
 * Starts a program as several ranks on this host, a process each.
 *
 * <p>Exit statuses: 0 all ranks are done; 2 the options are wrong; 130 ended by Ctrl-C (143 by SIGTERM); else that of the rank which failed
 * first, after the last restart.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "launch",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Starts N processes on this host, each a rank with a device of its own.",
        footer = {
            "",
            "  ./chagres launch --nproc 2 -- train --strategy zero3 --steps 20",
            "",
            "Shows rank 0's output, and the standard error of the other ranks.",
            "When a rank fails, ends the other ranks and exits with that rank's status, or starts all again.",
            "Ctrl-C ends all after the step under way."
        })
public final class Launch implements Callable<Integer> {
    private final PrintStream err;

    @Option(names = "--nproc", paramLabel = "N", required = true, description = "how many processes")
    private int processes;

    @Option(
            names = "--max-restarts",
            paramLabel = "N",
            description =
                    "how often all processes are started again after one has failed, after 1 s, then 2 s, 4 s and so on, at most"
                            + " 30 s; after a run of ten minutes from 1 s on (default: 0); to go on where they were,"
                            + " give train --save FILE, --save-every and --resume-saved")
    private int mostRestarts;

    @Option(
            names = "--numa",
            converter = OfNuma.class,
            paramLabel = "auto|off",
            description =
                    "auto: each process runs on the cores of the NUMA node that its GPU is attached to, where the host"
                            + " has several nodes (default: auto)")
    private NumaBinding.Mode numa = NumaBinding.Mode.AUTO;

    /** Reads the value of {@code --numa}. */
    static final class OfNuma extends EnumOption<NumaBinding.Mode> {
        OfNuma() {
            super(NumaBinding.Mode.class);
        }
    }

    @Parameters(index = "0", paramLabel = "PROGRAM", description = "what each process runs: train")
    private String program = "";

    @Parameters(index = "1..*", paramLabel = "ARGUMENT", description = "what PROGRAM takes")
    private @Nullable List<String> arguments;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    Launch(PrintStream err) {
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        CommandStart.leaveOutProvider();
        System.exit(run(System.out, System.err, arguments));
    }

    /** Runs the command and returns its exit status. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        // What stands behind the program is the program's.
        return CommandStart.of(CommandStart.line(new Launch(err)).setStopAtPositional(true), out, err, arguments);
    }

    @Override
    public Integer call() throws InterruptedException {
        if (processes < 1) {
            throw new ParameterException(spec.commandLine(), "--nproc: expected at least 1, got " + processes);
        }
        if (mostRestarts < 0) {
            throw new ParameterException(
                    spec.commandLine(), "--max-restarts: expected at least 0, got " + mostRestarts);
        }
        if (!program.equals("train")) {
            throw new ParameterException(spec.commandLine(), "PROGRAM: expected train, got " + program);
        }
        List<String> given = arguments == null ? List.of() : arguments;
        int refused = Train.refusal(processes, given, err);
        if (refused != 0) {
            return refused;
        }
        try {
            return start(given);
        } catch (IOException e) {
            err.println("launch: a process could not be started: " + e.getMessage());
            return 1;
        }
    }

    /** Starts the ranks, and again after a failure, and returns the last exit status. */
    private int start(List<String> given) throws IOException, InterruptedException {
        NumaBinding binding = NumaBinding.ofHost(numa, processes);
        if (binding.isBound()) {
            err.println("launch: NUMA: " + binding);
        }
        RestartPauses pauses = new RestartPauses(System::nanoTime);
        for (int restart = 0; ; restart++) {
            pauses.begin();
            try (var ranks = new RankProcesses(processes, restart, Train.class, given, binding, err)) {
                int status = ranks.await();
                if (status == 0 || restart == mostRestarts || ranks.isInterrupted()) {
                    return status;
                }
            }
            long seconds = pauses.nextSeconds();
            err.println("launch: all " + processes + " ranks start again in " + seconds + " s, restart " + (restart + 1)
                    + " of " + mostRestarts);
            TimeUnit.SECONDS.sleep(seconds);
        }
    }

    /**
     * How long to wait before ranks start again: 1 s, then twice as long each time, for what made them fail may take a while to be over. After a
     * run that lasted {@link #HEALTHY_RUN} it was over, so the next pause is 1 s again.
     *
     * <p>Threading: one thread at a time.
     */
    static final class RestartPauses {
        /** How long a run lasts at least for the pauses to begin anew. */
        static final Duration HEALTHY_RUN = Duration.ofMinutes(10);

        private static final long LONGEST_SECONDS = 30;

        private final LongSupplier nanoTime;
        private long begun;
        private long next = 1;

        /** {@code nanoTime}: a clock such as {@link System#nanoTime}. */
        RestartPauses(LongSupplier nanoTime) {
            this.nanoTime = nanoTime;
            begun = nanoTime.getAsLong();
        }

        /** A run begins. */
        void begin() {
            begun = nanoTime.getAsLong();
        }

        /** The run that has begun last has failed: returns how long to wait before the next one. */
        long nextSeconds() {
            if (nanoTime.getAsLong() - begun >= HEALTHY_RUN.toNanos()) {
                next = 1;
            }
            long seconds = next;
            next = Math.min(LONGEST_SECONDS, 2 * seconds);
            return seconds;
        }
    }
}
