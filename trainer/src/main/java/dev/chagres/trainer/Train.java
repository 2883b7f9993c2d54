package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.NativeException;
import dev.chagres.bindings.Provider;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.data.FastaException;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.text.TextException;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.Interruption;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Trains ESM-2 on protein sequences, masked tokens of a FASTA file, or a decoder on text, one command for a laptop's CPU and for a GPU.
 *
 * <p>Exit statuses: 0 done; 1 the data, the machine or an output failed, told in one line (also standard output, when it is
 * full or closed), but after the last whole step {@code --save} has written its state; 2 the options are wrong; 130
 * ended by Ctrl-C (143 by SIGTERM) after the step under way, with report, picture and summary of the steps done.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "train",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Trains ESM-2, a masked language model of proteins, or a decoder on text, on a CPU or a GPU.",
        footer = {
            "",
            "Report: JSON Lines; first the run, then per step its loss, tokens (of",
            "sequences), paddedTokens (computed, padding included), stepMillis,",
            "tokensPerSecond (of sequences), gradNorm, learningRate, memoryBytes,",
            "teraflops (of the model), mfu, hfu (with recomputation).",
            "On several ranks byRank, a list: rank, stepMillis, bytes of its collectives.",
            "Until it is whole it is called FILE.part; a second run cannot write it.",
            "Ctrl-C ends the run after the step under way and writes what was asked for.",
            "Exit status: 0 done, 1 failed, 2 wrong options, 130 Ctrl-C."
        })
public final class Train implements Callable<Integer> {
    private static final int DONE = 0;
    private static final int FAILED = 1;
    private static final int USAGE = 2;

    private final Platform.Opener opener;
    private final StandardOutput out;
    private final PrintStream err;

    @Mixin
    private TrainOptions options = new TrainOptions();

    @Spec
    private CommandSpec spec = CommandSpec.create();

    Train(Platform.Opener opener, StandardOutput out, PrintStream err) {
        this.opener = opener;
        this.out = out;
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        RankProcesses.LauncherWatch.begin();
        var out = new StandardOutput(new FileOutputStream(FileDescriptor.out), System.out.charset());
        System.exit(run(DevicePlatform.opener(), out, System.err, arguments));
    }

    /** Runs the command and returns its exit status. */
    static int run(Platform.Opener opener, StandardOutput out, PrintStream err, String... arguments) {
        int status = CommandStart.of(new Train(opener, out, err), out.text(), err, arguments);
        if (status != DONE || !out.failed()) {
            return status;
        }
        String failure = out.newFailure();
        if (failure != null) {
            err.println("train: " + failure);
        }
        return FAILED;
    }

    /**
     * Looks whether so many processes can run with these options, before one is started: what all would say is said once.
     *
     * @return 0, or the exit status of a refusal, which is told
     */
    static int refusal(int processes, List<String> arguments, PrintStream err) {
        OutputStream nobody = OutputStream.nullOutputStream();
        var train = new Train(DevicePlatform.opener(), new StandardOutput(nobody, StandardCharsets.UTF_8), err);
        try {
            var parsed = CommandStart.line(train).parseArgs(arguments.toArray(String[]::new));
            if (parsed.isUsageHelpRequested() || parsed.isVersionHelpRequested()) {
                return DONE;
            }
            train.options.toLaunch(processes);
            train.options.check();
            String provider = train.options.provider();
            if (provider != null) {
                System.setProperty(Provider.PROPERTY, provider);
            }
            var _ = train.options.plan(Provider.current() == Provider.CUDA, Device.count());
            return DONE;
        } catch (IllegalArgumentException | ParameterException e) {
            String text =
                    e instanceof ParameterException wrong ? CommandStart.text(wrong) : String.valueOf(e.getMessage());
            String command = text.startsWith(RankOptions.NPROC) ? "launch" : "train";
            err.println(command + ": " + ForeignText.lines(text) + " (" + command + " --help lists the options)");
            return USAGE;
        } catch (FastaException | TextException | NativeException e) {
            err.println("train: " + e.getMessage());
            return FAILED;
        } catch (CheckpointException | SafetensorsException e) {
            err.println("train: --model: " + ForeignText.lines(String.valueOf(e.getMessage())));
            return FAILED;
        }
    }

    @Override
    public Integer call() throws InterruptedException {
        try {
            options.check();
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        }
        var interruption = new Interruption("train", err);
        interruption.arm();
        try {
            train(interruption);
            return DONE;
        } catch (TrainingException.WrongOption e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        } catch (FastaException | TextException | TrainingException | UncheckedIOException | NativeException e) {
            err.println("train: " + e.getMessage());
            return FAILED;
        } catch (CheckpointException | SafetensorsException e) {
            err.println("train: --model: " + ForeignText.lines(String.valueOf(e.getMessage())));
            return FAILED;
        } catch (OutOfMemoryError e) {
            return heapIsFull(e);
        } catch (IllegalStateException e) {
            if (e.getCause() instanceof OutOfMemoryError inTheReader) {
                return heapIsFull(inTheReader);
            }
            throw e;
        } finally {
            interruption.disarm();
        }
    }

    private int heapIsFull(OutOfMemoryError e) {
        err.println("train: the Java heap is too small for such batches (" + e.getMessage()
                + "); lower --tokens-per-step or --context, or enlarge it: CHAGRES_JAVA_OPTIONS=-Xmx8g");
        return FAILED;
    }

    private TrainingPlan plan(Platform platform) {
        try {
            options.requireDevice(platform.multiprocessors());
            return options.plan(platform.isGpu(), platform.devices());
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        }
    }

    /** Rank 0, another process, tells of the run. */
    private static TrainingSession silent(TrainingPlan plan, Platform platform) {
        OutputStream nobody = OutputStream.nullOutputStream();
        Charset charset = StandardCharsets.UTF_8;
        return new TrainingSession(
                plan, platform, new StandardOutput(nobody, charset), new PrintStream(nobody, false, charset));
    }

    private void train(Interruption interruption) throws InterruptedException {
        if (options.isSilent()) {
            CommandStart.leaveOutProvider();
        }
        String provider = options.provider();
        if (provider != null) {
            System.setProperty(Provider.PROPERTY, provider);
        }
        try (Platform platform = opener.open(options.device())) {
            TrainingPlan plan = plan(platform);
            var session = options.isSilent() ? silent(plan, platform) : new TrainingSession(plan, platform, out, err);
            interruption.onInterrupt(session::stop);
            if (!options.isSilent()) { // Rank 0 has the file.
                session.claim();
            }
            try {
                session.train();
            } finally {
                session.release();
            }
        }
    }
}
