package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.Retention;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.FileChecks;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.Option;
import picocli.CommandLine.TypeConversionException;

/**
 * Where the state of a run goes, and which one it begins with.
 *
 * <p>Threading: immutable.
 *
 * @param file where it goes when the run ends: a file, or the folder of a run; null for nowhere
 * @param retention which checkpoints stay, if {@code file} is a folder; null where it is a file
 * @param times when it goes there besides, and how
 * @param resumed the file that the run begins with, null for first weights
 * @param recipes which recipes its run may have had
 * @param data which data its run may have had
 * @param defaults options of the learning rate that were not given, by their names: where their values come from
 */
record SavingPlan(
        @Nullable Path file,
        @Nullable Retention retention,
        Times times,
        @Nullable Path resumed,
        Recipes recipes,
        Data data,
        Map<String, String> defaults) {
    /** Nothing is saved, and first weights begin. */
    static final SavingPlan NONE = new SavingPlan(null, null, Times.AT_END, null, Recipes.SAME, Data.SAME, Map.of());

    /** Returns what saves the state; null where nothing does. */
    @Nullable
    Checkpoints checkpoints() {
        Path target = file;
        if (target == null) {
            return null;
        }
        Checkpoints made = retention == null
                ? Checkpoints.file(target)
                : Checkpoints.in(target).with(retention);
        Checkpoints timed = times.interval == null ? made.withEvery(times.every) : made.withEvery(times.interval);
        Checkpoints chosen = timed.withMode(times.mode).withFailure(times.failure);
        return retention == null ? chosen : chosen.withPinnedBytes(times.buffer);
    }

    /**
     * When the state is saved, and how.
     *
     * @param every after each step whose number divides by this; 0 for none
     * @param interval after so much time; null for none
     * @param mode when training goes on
     * @param failure what a failure does
     * @param buffer bytes of page-locked memory of the host that each rank takes at most
     */
    record Times(
            int every, @Nullable Duration interval, Checkpoints.Mode mode, Checkpoints.Failure failure, long buffer) {
        static final long BUFFER = 512L << 20;
        static final Times AT_END =
                new Times(0, null, Checkpoints.Mode.BACKGROUND, Checkpoints.Failure.ENDS_RUN, BUFFER);
    }

    /**
     * Reads the value of {@code --save-every}: steps, or seconds, minutes or hours.
     *
     * <p>Threading: thread-safe.
     */
    static final class OfInterval implements ITypeConverter<Interval> {
        private static final Pattern TEXT = Pattern.compile("([0-9]{1,9})([smh]?)");

        @Override
        public Interval convert(String value) {
            Matcher parts = TEXT.matcher(value);
            if (!parts.matches()) {
                throw new TypeConversionException("expected steps such as 500, or a time such as 90s, 30m or 2h, got "
                        + ForeignText.plain(value));
            }
            int number = Integer.parseInt(parts.group(1));
            return switch (parts.group(2)) {
                case "" -> new Interval(number, null);
                case "s" -> new Interval(number, Duration.ofSeconds(number));
                case "m" -> new Interval(number, Duration.ofMinutes(number));
                default -> new Interval(number, Duration.ofHours(number));
            };
        }
    }

    /**
     * What {@code --save-every} says.
     *
     * @param number of steps, or of what {@code time} counts
     * @param time null where it is steps
     */
    private record Interval(int number, @Nullable Duration time) {}

    /**
     * Reads the value of {@code --save-buffer}: MiB or GiB.
     *
     * <p>Threading: thread-safe.
     */
    static final class OfBuffer implements ITypeConverter<Long> {
        private static final Pattern TEXT = Pattern.compile("([0-9]{1,7})([MG])(?:iB)?");

        @Override
        public Long convert(String value) {
            Matcher parts = TEXT.matcher(value);
            if (!parts.matches()) {
                throw new TypeConversionException(
                        "expected a size such as 512M or 16G, got " + ForeignText.plain(value));
            }
            return Long.parseLong(parts.group(1)) << (parts.group(2).equals("M") ? 20 : 30);
        }
    }

    /** Reads the value of {@code --save-mode}. */
    static final class OfMode extends EnumOption<Checkpoints.Mode> {
        OfMode() {
            super(Checkpoints.Mode.class);
        }
    }

    /** Reads the value of {@code --save-failure}. */
    static final class OfFailure extends EnumOption<Checkpoints.Failure> {
        OfFailure() {
            super(Checkpoints.Failure.class);
        }
    }

    /** Which recipes the run of a file may have had that a run begins with. */
    enum Recipes {
        /** That of this run. */
        SAME,
        /** Each with weights of the same type: the options name that of this run. */
        SAME_WEIGHTS
    }

    /** Which data, and which length of sequences, the run of a file may have had that a run begins with. */
    enum Data {
        /** Those of this run. */
        SAME,
        /** Any. */
        OTHER
    }

    /**
     * What {@code --save} names.
     *
     * @param slash whether the name ends with one
     */
    private record Target(Path path, boolean slash) {
        boolean isFolder() {
            return slash || Files.isDirectory(path);
        }
    }

    /**
     * Reads the value of {@code --save}.
     *
     * <p>Threading: thread-safe.
     */
    static final class OfTarget implements ITypeConverter<Target> {
        @Override
        public Target convert(String value) {
            return new Target(new FileChecks.FileOption().convert(value), value.endsWith("/"));
        }
    }

    /** Options of {@code train} that say where the state of a run goes, and which one it begins with. */
    static final class Options {
        private static final long LEAST_BUFFER = 32L << 20;

        @Option(
                names = "--save",
                converter = OfTarget.class,
                paramLabel = "FILE|DIR/",
                description =
                        "when the run ends, also by Ctrl-C or a failure, write the state that --resume needs, as safetensors;"
                                + " DIR/ is a folder of checkpoints, each of which keeps the earlier ones")
        private @Nullable Target save;

        @Option(
                names = "--save-every",
                converter = OfInterval.class,
                paramLabel = "N|TIME",
                description =
                        "with --save, also save after every Nth step, or when a time such as 90s, 30m or 2h has passed"
                                + " since the last save (default: 0, only at the end)")
        private Interval every = new Interval(0, null);

        @Option(
                names = "--save-mode",
                converter = OfMode.class,
                paramLabel = "MODE",
                description = "with --save DIR/: background copies and writes while training goes on, blocking waits"
                        + " (default: background)")
        private Checkpoints.Mode mode = Checkpoints.Mode.BACKGROUND;

        @Option(
                names = "--save-buffer",
                converter = OfBuffer.class,
                paramLabel = "SIZE",
                description =
                        "with --save DIR/ in the background, page-locked memory of the host that each rank takes at most, such as"
                                + " 16G: as much as its part of the state, and no step waits for the disk (default: 512M)")
        private @Nullable Long buffer;

        @Option(
                names = "--save-failure",
                converter = OfFailure.class,
                paramLabel = "WAY",
                description =
                        "with --save DIR/, what happens when a checkpoint cannot be written: ends-run, or continues"
                                + " (default: ends-run)")
        private Checkpoints.Failure failure = Checkpoints.Failure.ENDS_RUN;

        @Option(
                names = "--keep-last",
                paramLabel = "K",
                description = "with --save DIR/, keep the last K checkpoints and remove others (default: 0, keep all)")
        private int keepLast;

        @Option(
                names = "--keep-every",
                paramLabel = "N",
                description = "with --keep-last, also keep the checkpoint of every Nth step (default: 0, none)")
        private int keepEvery;

        @Option(
                names = "--keep-best",
                paramLabel = "M",
                description =
                        "with --keep-last, also keep the M checkpoints whose evaluation had the lowest loss (default: 0, none)")
        private int keepBest;

        @Option(
                names = "--resume",
                converter = FileChecks.FileOption.class,
                paramLabel = "FILE|DIR",
                description =
                        "go on from a file or the last checkpoint of --save until --steps steps are done in all. --ranks, --strategy and --mesh may differ"
                                + " from the saved run's; --recipe too if its weights have the same type, and then the file's"
                                + " scales are ignored")
        private @Nullable Path resume;

        @Option(
                names = "--resume-saved",
                description =
                        "go on from the file of --save if there is one, so that the same command can be started again, as"
                                + " launch --max-restarts does; else begin as without this option")
        private boolean resumeSaved;

        @Option(
                names = "--resume-with-other-data",
                description =
                        "go on, after as many sequences, though the content of --fasta, or --context, is not the saved"
                                + " run's, which is refused otherwise")
        private boolean otherData;

        /** Returns where the state goes, null for nowhere. */
        @Nullable
        Path save() {
            return save == null ? null : save.path;
        }

        private boolean isFolder() {
            return save != null && save.isFolder();
        }

        /** Returns the file that the run begins with, null for none. */
        @Nullable
        Path resume() {
            Path own = save();
            return resumeSaved && own != null && isThere(own) ? own : resume;
        }

        private boolean isThere(Path own) {
            return isFolder() ? CheckpointFolder.of(own).last().isPresent() : Files.exists(own);
        }

        /** Returns the files as the plan has them. */
        SavingPlan plan(Recipes recipes, Map<String, String> defaults) {
            Retention kept = isFolder() ? new Retention(keepLast, keepEvery, keepBest) : null;
            var times = new Times(
                    every.time == null ? every.number : 0,
                    every.time,
                    mode,
                    failure,
                    buffer == null ? Times.BUFFER : buffer);
            return new SavingPlan(save(), kept, times, resume(), recipes, otherData ? Data.OTHER : Data.SAME, defaults);
        }

        /**
         * Checks what does not depend on other options.
         *
         * @throws IllegalArgumentException when an option has no usable value; the text names it
         */
        void check() {
            if (every.time != null && every.number == 0) {
                throw new IllegalArgumentException("--save-every: expected a time of at least 1s, got none");
            }
            FileChecks.requireName("--save", save());
            checkReplaced();
            FileChecks.requireName("--resume", resume);
            if (every.number != 0 && save == null) {
                throw new IllegalArgumentException(
                        "--save-every: expected --save beside it, which is written, got none");
            }
            if ((mode == Checkpoints.Mode.BLOCKING || failure == Checkpoints.Failure.CONTINUES) && !isFolder()) {
                throw new IllegalArgumentException(
                        (mode == Checkpoints.Mode.BLOCKING ? "--save-mode" : "--save-failure")
                                + ": expected --save DIR/ beside it, a folder whose name ends with a slash or that"
                                + " exists, got " + (save == null ? "none" : save.path));
            }
            checkBuffer();
            TrainOptions.requireAtLeast("--keep-last", keepLast, 0);
            TrainOptions.requireAtLeast("--keep-every", keepEvery, 0);
            TrainOptions.requireAtLeast("--keep-best", keepBest, 0);
            if (keepLast != 0 && !isFolder()) {
                throw new IllegalArgumentException(
                        "--keep-last: expected --save DIR/ beside it, a folder whose name ends"
                                + " with a slash or that exists, got " + (save == null ? "none" : save.path));
            }
            if (keepLast == 0 && (keepEvery != 0 || keepBest != 0)) {
                throw new IllegalArgumentException((keepEvery != 0 ? "--keep-every" : "--keep-best")
                        + ": expected --keep-last beside it, without which all checkpoints stay, got none");
            }
            if (resumeSaved && save == null) {
                throw new IllegalArgumentException(
                        "--resume-saved: expected --save beside it, whose file the run goes on from, got none");
            }
            if (otherData && resume == null && !resumeSaved) {
                throw new IllegalArgumentException(
                        "--resume-with-other-data: expected --resume or --resume-saved beside it, got none");
            }
        }

        /** A state may replace one, and an empty file, but nothing else, which somebody else has written. */
        private void checkReplaced() {
            Path target = save();
            if (target == null || isFolder() || !Files.isRegularFile(target)) {
                return;
            }
            String got;
            try {
                if (Files.size(target) == 0) {
                    return;
                }
                try (SafetensorsFile file = SafetensorsFile.open(target)) {
                    String program = file.metadata().get("program");
                    if (SavedRun.PROGRAM.equals(program)) {
                        return;
                    }
                    got = "safetensors " + (program == null ? "without its mark" : "of " + ForeignText.quoted(program));
                }
            } catch (IOException | SafetensorsException e) {
                got = "one that cannot be read as such";
            }
            throw new IllegalArgumentException("--save: " + ForeignText.plain(target)
                    + ": expected a new name, or a file that --save has written and a new one may replace, got " + got
                    + "; name another one, or remove it");
        }

        private void checkBuffer() {
            if (buffer == null) {
                return;
            }
            if (!isFolder() || mode == Checkpoints.Mode.BLOCKING) {
                throw new IllegalArgumentException(
                        "--save-buffer: expected --save DIR/ beside it, and background saves, got "
                                + (isFolder() ? "--save-mode blocking" : save == null ? "none" : save.path));
            }
            if (buffer < LEAST_BUFFER) {
                throw new IllegalArgumentException("--save-buffer: expected at least 32M, got " + (buffer >> 20) + "M");
            }
        }
    }

    /** Returns the result of {@code save}, which writes to {@code target} or begins to; JDK Flight Recorder is told, where it records. */
    static <T> T recorded(Object target, Supplier<T> save) {
        if (!FlightRecorder.isInitialized()) {
            return save.get();
        }
        var event = new SaveEvent();
        event.begin();
        T result = save.get();
        if (event.shouldCommit()) {
            event.target = target.toString();
            event.commit();
        }
        return result;
    }

    /**
     * An event of JDK Flight Recorder: the state was saved, on the rank whose thread it is of. It lasts as long as training waits.
     *
     * <p>Threading: one thread at a time.
     */
    @Name("dev.chagres.Save")
    @Label("Save")
    @Description("The state of a run was saved")
    @Category("Chagres")
    @StackTrace(false)
    static final class SaveEvent extends Event {
        @Label("Target")
        String target = "";
    }
}
