// Sealed pages that may be used again: one tree for each isolation domain.
//
// Invariants kept here:
//   I2   a page in a tree belongs to the tree; sequences pin it, and it is let go only when nobody does;
//   I10  nothing is found across domains: every domain has a tree of its own, identities in it are made with the domain's key,
//        and the tokens of the whole path are compared on a hit.
// Whoever pins a page pins all before it in the path, so that every page without a pin can be evicted, last pages first.
#ifndef COFFERDAM_KV_PREFIX_CACHE_H_
#define COFFERDAM_KV_PREFIX_CACHE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/strong_id.h"
#include "kv/hash.h"
#include "kv/page_index.h"
#include "kv/pool.h"
#include "kv/seal.h"

namespace cofferdam::kv {

// Whose pages: the name of an isolation domain, and the key that its identities are made with.
struct Domain {
  std::string name;
  Key key{};
};

struct PrefixCacheCounters {
  uint64_t looked_up_tokens = 0;  // of whole pages that a hit could have covered
  uint64_t hit_tokens = 0;
  uint64_t inserted_pages = 0;
  uint64_t evicted_pages = 0;
  uint64_t dropped_pages = 0;  // no longer trusted
};

// One thread, that of the pool.
class PrefixCache {
  struct Node;

 public:
  // The move-only right to read one page of a tree. Destroying one that was not given back is a broken invariant.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept;
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin();

    bool held() const { return node_ != nullptr; }
    const PageHandle& handle() const;
    uint64_t origin() const;
    // False: the page is not found any more, and goes with its last pin.
    bool in_tree() const;
    // Whether a check of the page has failed since: then nothing may be computed from it any more.
    bool bad() const;

   private:
    friend class PrefixCache;
    explicit Pin(Node* node) : node_(node) {}
    Node* node_ = nullptr;
  };

  // `pool` is not owned and outlives the cache.
  explicit PrefixCache(Pool& pool);
  // REQUIRES: nothing is pinned, and the cache was cleared.
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Looks the longest path up that holds the beginning of `tokens`, at most `most_pages` whole pages, and pins it, in one step.
  std::vector<Pin> Acquire(const Domain& domain, std::span<const TokenId> tokens, size_t most_pages);
#ifdef COFFERDAM_FAULTS
  // Whatever these pages hold by now, up to the first that is in no tree (Fault::kPinAfterLookup).
  std::vector<Pin> AcquirePages(std::span<const PageId> pages);
#endif
  // Counts a look-up that came to something; one that is repeated, because there is no room yet, counts once.
  void CountLookup(size_t most_pages, size_t found_pages);
  // Puts a sealed whole page behind `parent` (null: the first of a path) and pins it. Returns the handle when the tree holds such a
  // page already, or does not hold the parent any more. `tokens` are those of the page; `origin` names the worker whose bytes they
  // are, 0 for our own.
  std::variant<Pin, PageHandle> Insert(const Domain& domain, const Pin* parent, std::span<const TokenId> tokens, PageHandle handle,
                                       uint64_t origin);
  // Gives a pin back. A page that is not trusted any more retires with the last of them, in `epoch`.
  void Unpin(Pin pin, StepEpoch epoch);

  // Pages that Evict could let go now.
  uint64_t evictable_pages() const { return evictable_; }
  // Lets up to `pages` pages retire: those that were used least recently, of domains that hold at least their share of what nobody
  // uses; all salts of a domain count as one. Returns how many.
  uint64_t Evict(uint64_t pages, StepEpoch epoch);

  // A check of this page has failed: neither it nor what was computed behind it is found any more; it is quarantined as soon as
  // nobody holds it, also where it was dropped before. Pages that were never in a tree are ignored.
  void Condemn(PageId page, StepEpoch epoch);
  // Nothing that came from this worker, nor what was computed behind it, is found any more. Returns how many pages that were.
  uint64_t DropOrigin(uint64_t origin, StepEpoch epoch);
  // Nothing that begins as `tokens` do, by whole pages, is found any more. Returns how many pages that were.
  uint64_t Forget(const Domain& domain, std::span<const TokenId> tokens, StepEpoch epoch);
  // REQUIRES: nothing is pinned.
  void Clear(StepEpoch epoch);

  // The first page in a tree with an id of at least `from`; null when there is none. For the scrubber.
  const PageHandle* NextPage(PageId from) const;

  uint64_t pages() const { return by_page_.size(); }
  // Of all trees. Thread-safe, unlike the rest.
  const PageIndex& index() const { return index_; }
  const PrefixCacheCounters& counters() const { return counters_; }
  // I9 and the claim about pins, recounted from the trees. O(pages).
  void CheckConsistency() const;

 private:
  struct Tree;
  struct Group;
  // Of equals the older one comes first, so that a run with the same calls evicts the same pages.
  using ByEvictable = std::tuple<uint64_t, uint64_t, Group*>;

  static ByEvictable KeyOf(Group& group);
  Tree& TreeOf(const Domain& domain);
  // The child of `parent` (null: a first page) with this identity and exactly these tokens.
  Node* Find(Tree& tree, const Node* parent, const Digest128& identity, std::span<const TokenId> tokens);
  Pin MakePin(Node& node);
  // Adds a node to, or takes it out of, what can be evicted. Called around every change of its pins and children.
  void Account(Node& node, int change);
  void UpdateLeaf(Node& node);
  void SetLeaf(Node& node, bool is_leaf);
  Node& NextToGo();
  // Takes the node and all behind it out of the tree; those that nobody pins are let go at once.
  uint64_t Detach(Node& node, StepEpoch epoch);
  void LetGo(std::unique_ptr<Node> node, StepEpoch epoch);

  Pool& pool_;
  std::map<std::string, std::unique_ptr<Group>> groups_;  // by what stands before the salt
  std::map<std::string, std::unique_ptr<Tree>> trees_;
  std::map<PageId, Node*> by_page_;                           // in a tree
  absl::flat_hash_map<Node*, std::unique_ptr<Node>> doomed_;  // in none any more, and pinned
  std::set<ByEvictable> by_evictable_;                        // groups with pages that can be evicted
  std::set<std::pair<uint64_t, Node*>> leaves_;               // of all trees, least recently used first
  PageIndex index_;
  uint64_t evictable_ = 0;
  uint64_t clock_ = 0;  // counts uses
  uint64_t next_group_ = 0;
  PrefixCacheCounters counters_;
};

}  // namespace cofferdam::kv

#endif  // COFFERDAM_KV_PREFIX_CACHE_H_
