package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.Collectors;

/**
 * What each guarded function answered to one set of arguments.
 *
 * @param what the arguments in words
 */
record GuardAnswers(String what, List<Answer> answers) {

    /** The functions that upstream's headers declare, and one that upstream exports without declaring. */
    static final int FUNCTIONS = 313;

    static final int SUCCESS = 0;
    static final int MISSING = 3;

    /** Success, error, refused, missing, not open. */
    private static final int STATUSES = 5;

    /** One function's answer; the text is empty for a success. */
    record Answer(String function, int status, String text) {}

    /**
     * Calls every function with each of the arguments, in one JVM; a process that ends fails the test with the function's
     * name. Arguments that may succeed belong at the end of the list: what they make is there for those that follow.
     */
    static List<GuardAnswers> of(List<String> options, List<String> arguments) {
        ForkedJvm.Result result = ForkedJvm.run(options, CallEverything.class, arguments.toArray(String[]::new));
        if (result.exitStatus() != 0) {
            throw new AssertionError("the process ended in " + last(result, "call ") + " with "
                    + last(result, "arguments ") + ":\n" + result.output());
        }
        List<GuardAnswers> all = new ArrayList<>();
        for (String line : result.output().lines().toList()) {
            if (line.startsWith("arguments ")) {
                all.add(new GuardAnswers(line, new ArrayList<>()));
            } else if (line.startsWith("status ")) {
                String[] words = line.split(" ", 4);
                all.getLast().answers().add(new Answer(words[1], Integer.parseInt(words[2]), words[3]));
            }
        }
        assertEquals(
                arguments.stream().map("arguments "::concat).toList(),
                all.stream().map(GuardAnswers::what).toList());
        return all;
    }

    private static String last(ForkedJvm.Result result, String start) {
        return result.output().lines().filter(line -> line.startsWith(start)).reduce("none", (first, second) -> second);
    }

    TreeSet<String> functionsWith(int status) {
        return answers.stream()
                .filter(answer -> answer.status() == status)
                .map(Answer::function)
                .collect(Collectors.toCollection(TreeSet::new));
    }

    /** None was skipped, and each that did not succeed says why. */
    void assertWhole() {
        assertEquals(FUNCTIONS, answers.size());
        assertEquals(
                new TreeSet<>(CallEverything.functions()),
                answers.stream().map(Answer::function).collect(Collectors.toCollection(TreeSet::new)));
        for (Answer answer : answers) {
            assertTrue(answer.status() >= SUCCESS && answer.status() < STATUSES, answer.toString());
            assertEquals(answer.status() == SUCCESS, answer.text().isBlank(), answer.toString());
        }
    }
}
