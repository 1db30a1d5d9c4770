// A batch of queries searched over one snapshot.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dialogue.hpp"
#include "neighbours.hpp"
#include "score.hpp"
#include "snapshot.hpp"

namespace fanrank::search {

// Which documents pass a filter, part by part of a snapshot.
class Masks {
public:
    std::vector<std::span<const std::uint8_t>> of_part;
    std::vector<std::int64_t> passing;   // how many documents of each part pass
    std::size_t most = 0;                // lists that are surveyed; searches do without the surveys of others
    mutable std::atomic<int> uses{0};    // batches that were searched with them

    // The survey of a list of a part among the live documents that pass, made at the first call; null: `most` are.
    const Survey* survey(std::size_t number, const Part& part, std::int64_t position) const;
    std::size_t surveyed() const;

private:
    mutable std::map<std::pair<std::size_t, std::int64_t>, Survey> surveys_;
};

// What queries share beside their words; `engine/plan/requests.py` explains the fields.
struct Setting {
    const Masks* masks = nullptr;  // null: every record passes
    double since = 0.0, until = 0.0;
    bool ranged = false;
    Decay decay;
};

// The queries of a batch and how they are searched.
struct Request {
    std::span<const std::int64_t> k;         // [queries]
    std::span<const std::int64_t> setting;   // [queries] into `settings`
    std::span<const Setting> settings;
    ScoreOptions options;
    int threads = 1;
    const Lending* lending = nullptr;  // null: nothing is borrowed. Else no setting decays, and sums are in steps
    // Not null: `lending` is there, too, and hits are ranked by its shares.
    const Dialogue* dialogue = nullptr;
    const Asked* asked = nullptr;
};

// Where the hits of query q go: row `rows[q]` of arrays [.., width]. Places beyond a query's hits are left as they are.
struct Answer {
    std::span<const std::int64_t> rows;
    std::int64_t width = 0;
    double unit = 1.0;         // a score of 1 quantum
    double* scores = nullptr;  // null: `quanta` is written instead
    std::int64_t* quanta = nullptr;
    std::int64_t* documents = nullptr;
    std::int32_t* counts = nullptr;
};

// Answers the queries of the plan. `unread` gets the documents whose texts a dialogue needs and nobody has read: if there
// are any, the answer means nothing. Equal for every number of threads.
Counted search(const Snapshot& snapshot, const Plan& plan, const Request& request, const Answer& answer,
               std::vector<std::int64_t>* unread = nullptr);

}  // namespace fanrank::search
