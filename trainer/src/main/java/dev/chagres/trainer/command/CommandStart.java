package dev.chagres.trainer.command;

import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.NativeException;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.data.FastaException;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.text.TextException;
import java.io.IOException;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.NoSuchFileException;
import java.util.Comparator;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.function.Function;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.MissingParameterException;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.TypeConversionException;
import picocli.CommandLine.UnmatchedArgumentException;

/**
 * Runs a command with its options: what they print goes where the command does, and wrong ones are told in one line.
 *
 * <p>Threading: one thread at a time.
 */
public final class CommandStart {
    private static final int FAILED = 1;
    private static final int USAGE = 2;

    /** Says which provider computes. Kept: a logger that nobody holds forgets its level. */
    private static final Logger LOGGER = Logger.getLogger("dev.chagres");

    private static final String SLF4J = "slf4j.internal.verbosity";

    /** Says how Parquet is decoded. */
    private static final Logger PARQUET = Logger.getLogger("dev.hardwood");

    static {
        PARQUET.setLevel(Level.WARNING);
        // The library of tokenizers asks for a logger that commands do not have.
        if (System.getProperty(SLF4J) == null) {
            System.setProperty(SLF4J, "ERROR");
        }
    }

    private CommandStart() {}

    /** Leaves out, in this process, the line that names the provider: of several, rank 0 alone shows it. Warnings stay. */
    public static void leaveOutProvider() {
        LOGGER.setLevel(Level.WARNING);
    }

    /** Leaves out, in this process, what is said of steps that are only counted. */
    public static void leaveOutWarnings() {
        LOGGER.setLevel(Level.SEVERE);
    }

    /** Runs {@code command} and returns its exit status: 2 when the options are wrong. */
    public static int of(Callable<Integer> command, PrintStream out, PrintStream err, String... arguments) {
        return of(line(command), out, err, arguments);
    }

    /**
     * Runs the command that {@code line} was made of, and returns its exit status: 1 when data, a file or the machine fails, which one line
     * tells, 2 when the options are wrong. Any other exception is a fault of the program, and is shown with its trace.
     */
    public static int of(CommandLine line, PrintStream out, PrintStream err, String... arguments) {
        String name = line.getCommandName();
        return line.setOut(new PrintWriter(out, true, out.charset()))
                .setErr(new PrintWriter(err, true, err.charset()))
                .setParameterExceptionHandler((wrong, given) -> {
                    err.println(name + ": " + text(wrong, given) + " (" + name + " --help lists the options)");
                    return USAGE;
                })
                .setExecutionExceptionHandler((failure, _, _) -> {
                    String text = told(failure);
                    if (text == null) {
                        throw failure;
                    }
                    err.println(name + ": " + ForeignText.lines(text));
                    return FAILED;
                })
                .execute(arguments);
    }

    /** Returns {@code status} of a command whose result is what it prints, or 1 where that was lost, which one line tells. */
    public static int printed(int status, String command, PrintStream out, PrintStream err) {
        if (status != 0 || !out.checkError()) {
            return status;
        }
        err.println(command + ": standard output cannot be written");
        return FAILED;
    }

    /** Returns what a user is told of a failure that is no fault of the program, else null. */
    private static @Nullable String told(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof OutOfMemoryError full) {
                return "the Java heap of " + (Runtime.getRuntime().maxMemory() >> 20) + " MiB is full ("
                        + full.getMessage() + "); enlarge it: CHAGRES_JAVA_OPTIONS=-Xmx8g";
            }
            if (cause instanceof IllegalCallerException) { // the JVM denies calls to C
                return failure.getMessage();
            }
        }
        return switch (failure) {
            case NoSuchFileException missing -> "no such file or folder: " + missing.getFile();
            case AccessDeniedException denied -> "permission denied for " + denied.getFile();
            case FileAlreadyExistsException there -> "expected a folder or nothing, got a file: " + there.getFile();
            case IOException e -> String.valueOf(e.getMessage());
            case NativeException _,
                    CheckpointException _,
                    SafetensorsException _,
                    FastaException _,
                    TextException _,
                    UncheckedIOException _,
                    CommandFailure _ -> String.valueOf(failure.getMessage());
            default -> null;
        };
    }

    /** Returns the options of {@code command}, whose numbers are refused as words are: with what was expected and what came. */
    public static CommandLine line(Object command) {
        var toInt = number(Integer::valueOf, "a whole number no larger than " + Integer.MAX_VALUE);
        var toLong = number(Long::valueOf, "a whole number no larger than " + Long.MAX_VALUE);
        var toFloat = number(Float::valueOf, "a number, such as 0.001 or 1e-3");
        return new CommandLine(command)
                .registerConverter(int.class, toInt)
                .registerConverter(Integer.class, toInt)
                .registerConverter(long.class, toLong)
                .registerConverter(Long.class, toLong)
                .registerConverter(float.class, toFloat)
                .registerConverter(Float.class, toFloat);
    }

    private static <N extends Number> ITypeConverter<N> number(Function<String, N> parse, String expected) {
        return value -> {
            try {
                return parse.apply(value);
            } catch (NumberFormatException e) {
                throw new TypeConversionException(
                        "expected " + expected + ", got " + (value.isEmpty() ? "nothing" : ForeignText.plain(value)));
            }
        };
    }

    /** Returns picocli's text, which quotes arguments whole, without what would act on the terminal and with long ones shortened. */
    private static String shortened(String text, String... given) {
        String shown = text;
        for (String argument : given) {
            String value = argument.substring(argument.indexOf('=') + 1);
            shown = value.isEmpty() ? shown : shown.replace(value, ForeignText.plain(value));
        }
        return ForeignText.lines(shown);
    }

    /** Returns the text of {@code wrong}; of a name that is no option also the option that was probably meant. */
    public static String text(ParameterException wrong, String... given) {
        String text = shortened(String.valueOf(wrong.getMessage()), given);
        NearestOption options = NearestOption.of(wrong.getCommandLine());
        if (wrong instanceof UnmatchedArgumentException unmatched) {
            return text + options.hint(unmatched.getUnmatched().getFirst());
        }
        // picocli looks for options that are missing before it refuses those that it does not know.
        String unknown = wrong instanceof MissingParameterException ? options.firstUnknown(given) : "";
        return unknown.isEmpty()
                ? text
                : "Unknown option: '" + ForeignText.plain(unknown) + "'" + options.hint(unknown);
    }

    /**
     * Finds the option that was probably meant by a name that is no option's: {@code --strategy} for {@code --stratgy}.
     *
     * <p>Threading: thread-safe.
     *
     * @param names of all options of a command
     */
    private record NearestOption(Set<String> names) {
        /** How many letters may be missing, too many or others. */
        private static final int MOST_EDITS = 2;

        static NearestOption of(CommandLine line) {
            return new NearestOption(
                    Set.copyOf(line.getCommandSpec().optionsMap().keySet()));
        }

        /** Returns the end of an error's text for {@code argument}: empty when no option's name is near to it. */
        String hint(String argument) {
            String name = name(argument);
            return names.stream()
                    .filter(option -> option.startsWith("--") && edits(name, option) <= MOST_EDITS)
                    .min(Comparator.<String>comparingInt(option -> edits(name, option))
                            .thenComparing(option -> option))
                    .map(option -> "; did you mean " + option + "?")
                    .orElse("");
        }

        /** Returns the name of the first argument before the program that looks like an option and is none, or an empty text. */
        String firstUnknown(String... arguments) {
            boolean isValue = false;
            for (String argument : arguments) {
                boolean isOption = argument.startsWith("-") && !argument.equals("--");
                if (!isOption && !isValue) {
                    return "";
                }
                if (isOption && !names.contains(name(argument))) {
                    return name(argument);
                }
                isValue = isOption && !argument.contains("=");
            }
            return "";
        }

        private static String name(String argument) {
            int end = argument.indexOf('=');
            return end < 0 ? argument : argument.substring(0, end);
        }

        /** Returns how many letters must be inserted, removed or replaced to make {@code b} of {@code a} (Levenshtein's distance). */
        private static int edits(String a, String b) {
            int[] before = new int[b.length() + 1];
            for (int j = 0; j <= b.length(); j++) {
                before[j] = j;
            }
            for (int i = 1; i <= a.length(); i++) {
                int[] row = new int[b.length() + 1];
                row[0] = i;
                for (int j = 1; j <= b.length(); j++) {
                    int replaced = before[j - 1] + (a.charAt(i - 1) == b.charAt(j - 1) ? 0 : 1);
                    row[j] = Math.min(replaced, Math.min(before[j], row[j - 1]) + 1);
                }
                before = row;
            }
            return before[b.length()];
        }
    }
}
