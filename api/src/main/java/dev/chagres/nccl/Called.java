package dev.chagres.nccl;

import dev.chagres.bindings.ForeignText;
import java.time.Duration;
import org.jspecify.annotations.Nullable;

/**
 * The call that a rank was in when others failed.
 *
 * <p>Threading: immutable.
 *
 * @param caller the rank, of a communicator
 * @param call the collective or transfer that it was in, or called last; null where it had called none
 * @param time how long it has waited in that call, or how long ago it called it; null where that is not known
 * @param isInside whether it was in the call
 */
record Called(
        String caller, @Nullable String call, @Nullable Duration time, boolean isInside) {
    /** Returns how texts name a rank of a communicator. */
    static String caller(CommunicatorConfig config, int rank, int ranks) {
        return "communicator " + ForeignText.quoted(config.name()) + ", rank " + rank + " of " + ranks;
    }

    /** Returns the value for a rank that has called nothing. */
    static Called nothing(String caller) {
        return new Called(caller, null, null, false);
    }

    /** Returns the value for a rank that is in a call. */
    static Called in(String caller, String call) {
        return new Called(caller, call, null, true);
    }

    /** Returns the same after such a time. */
    Called waited(Duration newTime) {
        return new Called(caller, call, newTime, isInside);
    }

    @Override
    public String toString() {
        if (call == null) {
            return caller;
        }
        if (time == null) {
            return caller + (isInside ? ", in " : ", after ") + call;
        }
        long millis = time.toMillis();
        return isInside
                ? caller + ", in " + call + " waited " + millis + " ms"
                : caller + ", " + millis + " ms after " + call;
    }
}
