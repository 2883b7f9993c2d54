package dev.chagres.parameter;

import dev.chagres.internal.Checks;
import java.util.List;
import java.util.regex.Pattern;

/**
 * Which parameters of a plan are trained, by their names; the others are frozen when they are declared.
 *
 * <p>A pattern is a name, in which {@code *} stands for any characters. It means the parameter of that name and all whose names go on behind it
 * with a dot: {@code layers.3} means the parameters of the layer, {@code *.bias} every bias.
 *
 * {@snippet file="dev/chagres/parameter/TrainableTest.java" region="trainable"}
 *
 * <p>Threading: immutable.
 *
 * @param only patterns of those that are trained
 * @param frozen patterns of those that are not, even if {@code only} means them
 */
public record Trainable(List<String> only, List<String> frozen) {
    private static final String EVERYTHING = "*";

    /**
     * Copies the patterns.
     *
     * @throws IllegalArgumentException when one is empty
     */
    public Trainable {
        only = Checks.givenAll("only", only);
        frozen = Checks.givenAll("frozen", frozen);
        for (List<String> patterns : List.of(only, frozen)) {
            for (String pattern : patterns) {
                if (pattern.isBlank()) {
                    throw new IllegalArgumentException(
                            "patterns: expected names of parameters, such as layers.3 or *.bias, got an empty one");
                }
            }
        }
    }

    /** Trains every parameter. */
    public static Trainable all() {
        return new Trainable(List.of(EVERYTHING), List.of());
    }

    /** Trains those that a pattern means. */
    public static Trainable only(String... patterns) {
        return new Trainable(List.of(Checks.givenAll("patterns", patterns)), List.of());
    }

    /** Trains those that no pattern means. */
    public static Trainable allBut(String... patterns) {
        return new Trainable(List.of(EVERYTHING), List.of(Checks.givenAll("patterns", patterns)));
    }

    /** Returns whether the parameter of that name is trained. */
    public boolean trains(String name) {
        return isMeant(only, Checks.given("name", name)) && !isMeant(frozen, name);
    }

    private static boolean isMeant(List<String> patterns, String name) {
        return patterns.stream().anyMatch(pattern -> isMeant(pattern, name));
    }

    private static boolean isMeant(String pattern, String name) {
        String text = "\\Q" + pattern.replace("*", "\\E.*\\Q") + "\\E(\\..*)?";
        return Pattern.matches(text, name);
    }

    /**
     * Checks that each pattern means a parameter.
     *
     * @throws IllegalArgumentException when one means none
     */
    void check(List<Parameter> all) {
        for (List<String> patterns : List.of(only, frozen)) {
            for (String pattern : patterns) {
                if (all.stream().noneMatch(parameter -> isMeant(pattern, parameter.name()))) {
                    throw new IllegalArgumentException("trainable: expected patterns of names of parameters, such as "
                            + all.getFirst().name() + ", got " + pattern + ", which means none");
                }
            }
        }
    }
}
