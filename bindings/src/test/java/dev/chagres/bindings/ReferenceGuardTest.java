package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * No argument that makes no sense ends the process on the reference either, which lacks some functions. Its device memory
 * is host memory, so nothing can tell that a pointer to host memory with a billion bytes behind it is wrong: such pairs are
 * left out.
 */
@Tag("L0")
class ReferenceGuardTest {

    @Test
    void everyFunctionAnswersWhateverItIsGiven() {
        List<GuardAnswers> all = GuardAnswers.of(
                List.of("-Dchagres.provider=reference"),
                List.of("null,0", "null,-1", "null,1000000000", "0x1,0", "0xffff,1", "memory,0", "memory,1"));
        for (GuardAnswers answers : all) {
            answers.assertWhole();
            for (GuardAnswers.Answer answer : answers.answers()) {
                assertTrue(
                        answer.status() != GuardAnswers.MISSING
                                || answer.text()
                                        .startsWith("nvte_" + answer.function().substring(3) + " is not in "),
                        answer.toString());
            }
        }
    }
}
