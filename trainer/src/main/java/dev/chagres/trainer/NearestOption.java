package dev.chagres.trainer;

import java.util.Comparator;
import java.util.Set;
import picocli.CommandLine;

/**
 * Finds the option that was probably meant by a name that is no option's: {@code --strategy} for {@code --stratgy}.
 *
 * <p>Threading: thread-safe.
 *
 * @param names of all options of a command
 */
record NearestOption(Set<String> names) {
    /** How many letters may be missing, too many or others. */
    private static final int MOST_EDITS = 2;

    static NearestOption of(CommandLine line) {
        return new NearestOption(Set.copyOf(line.getCommandSpec().optionsMap().keySet()));
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
