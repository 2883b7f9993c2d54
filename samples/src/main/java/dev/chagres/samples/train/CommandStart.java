package dev.chagres.samples.train;

import java.io.PrintStream;
import java.io.PrintWriter;
import java.util.concurrent.Callable;
import picocli.CommandLine;
import picocli.CommandLine.MissingParameterException;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.TypeConversionException;
import picocli.CommandLine.UnmatchedArgumentException;

/**
 * Runs a command with its options: what they print goes where the command does, and wrong ones are told in one line.
 *
 * <p>Threading: one thread at a time.
 */
final class CommandStart {
    private static final int USAGE = 2;

    private CommandStart() {}

    /** Runs {@code command} and returns its exit status: 2 when the options are wrong. */
    static int of(Callable<Integer> command, PrintStream out, PrintStream err, String... arguments) {
        CommandLine line = line(command);
        if (command instanceof Launch) {
            line.setStopAtPositional(true); // What stands behind the program is the program's.
        }
        String name = line.getCommandName();
        return line.setOut(new PrintWriter(out, true, out.charset()))
                .setErr(new PrintWriter(err, true, err.charset()))
                .setParameterExceptionHandler((wrong, given) -> {
                    err.println(name + ": " + text(wrong, given) + " (" + name + " --help lists the options)");
                    return USAGE;
                })
                .execute(arguments);
    }

    /** Returns the options of {@code command}, whose numbers are refused as words are: with what was expected and what came. */
    static CommandLine line(Object command) {
        return new CommandLine(command)
                .registerConverter(int.class, CommandStart::toInt)
                .registerConverter(Integer.class, CommandStart::toInt)
                .registerConverter(long.class, CommandStart::toLong)
                .registerConverter(Long.class, CommandStart::toLong)
                .registerConverter(float.class, CommandStart::toFloat)
                .registerConverter(Float.class, CommandStart::toFloat);
    }

    /** Returns the text of {@code wrong}; of a name that is no option also the option that was probably meant. */
    static String text(ParameterException wrong, String... given) {
        String text = String.valueOf(wrong.getMessage());
        NearestOption options = NearestOption.of(wrong.getCommandLine());
        if (wrong instanceof UnmatchedArgumentException unmatched) {
            return text + options.hint(unmatched.getUnmatched().getFirst());
        }
        // picocli looks for options that are missing before it refuses those that it does not know.
        String unknown = wrong instanceof MissingParameterException ? options.firstUnknown(given) : "";
        return unknown.isEmpty() ? text : "Unknown option: '" + unknown + "'" + options.hint(unknown);
    }

    private static Integer toInt(String value) {
        try {
            return Integer.valueOf(value);
        } catch (NumberFormatException e) {
            throw refused("a whole number no larger than " + Integer.MAX_VALUE, value);
        }
    }

    private static Long toLong(String value) {
        try {
            return Long.valueOf(value);
        } catch (NumberFormatException e) {
            throw refused("a whole number no larger than " + Long.MAX_VALUE, value);
        }
    }

    private static Float toFloat(String value) {
        try {
            return Float.valueOf(value);
        } catch (NumberFormatException e) {
            throw refused("a number, such as 0.001 or 1e-3", value);
        }
    }

    private static TypeConversionException refused(String expected, String value) {
        return new TypeConversionException("expected " + expected + ", got " + (value.isEmpty() ? "nothing" : value));
    }
}
