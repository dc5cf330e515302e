#include "kv/prefix_cache.h"

#include <algorithm>

#include "base/check.h"
#include "base/faults.h"

namespace cofferdam::kv {
namespace {
// Old pages of small domains that are passed over for each page that goes; then the largest domain gives one.
constexpr int kMostLooks = 64;

const std::string& TreeName(const Domain& domain) {
  static const std::string one;
  return FaultIsOn(Fault::kOneTree) ? one : domain.name;
}
std::string GroupName(const std::string& domain) { return domain.substr(0, domain.find('\0')); }
}  // namespace

struct PrefixCache::Node {
  PageHandle handle;
  Digest128 identity{};
  std::vector<TokenId> tokens;  // of this page
  uint64_t origin = 0;
  Tree* tree = nullptr;    // null: doomed
  Node* parent = nullptr;  // null: a first page, or doomed
  std::vector<Node*> children;
  uint32_t pins = 0;
  uint64_t last_used = 0;
  bool is_leaf = false;  // is in tree->leaves
  bool bad = false;
};

// What fairness counts as one: a domain with all its salts, of which a client may draw as many as it likes.
struct PrefixCache::Group {
  uint64_t number = 0;  // counts groups
  uint64_t trees = 0;
  std::set<std::pair<uint64_t, Node*>> leaves;  // not pinned, without children: least recently used first
  uint64_t evictable = 0;                       // not pinned
};

struct PrefixCache::Tree {
  std::string name;
  Group* group = nullptr;
  absl::flat_hash_map<Digest128, std::unique_ptr<Node>> nodes;
};

PrefixCache::Pin& PrefixCache::Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  CD_CHECK(!held(), "I2: a pin is given back, never overwritten");
  node_ = std::exchange(other.node_, nullptr);
  return *this;
}

PrefixCache::Pin::~Pin() { CD_CHECK(!held(), "I2: a pin is given back, never dropped"); }
const PageHandle& PrefixCache::Pin::handle() const { return node_->handle; }
uint64_t PrefixCache::Pin::origin() const { return node_->origin; }
bool PrefixCache::Pin::in_tree() const { return node_->tree != nullptr; }
bool PrefixCache::Pin::bad() const { return node_->bad; }

PrefixCache::PrefixCache(Pool& pool) : pool_(pool) {}

PrefixCache::~PrefixCache() { CD_CHECK(by_page_.empty() && doomed_.empty(), "I2: a cache is cleared before it goes"); }

PrefixCache::Tree& PrefixCache::TreeOf(const Domain& domain) {
  std::unique_ptr<Tree>& tree = trees_[TreeName(domain)];
  if (tree == nullptr) {
    tree = std::make_unique<Tree>();
    tree->name = TreeName(domain);
    std::unique_ptr<Group>& group = groups_[GroupName(tree->name)];
    if (group == nullptr) {
      group = std::make_unique<Group>();
      group->number = next_group_++;
    }
    tree->group = group.get();
    ++group->trees;
  }
  return *tree;
}

PrefixCache::Node* PrefixCache::Find(Tree& tree, const Node* parent, const Digest128& identity, std::span<const TokenId> tokens) {
  const auto found = tree.nodes.find(identity);
  if (found == tree.nodes.end()) return nullptr;
  Node& node = *found->second;
  return node.parent == parent && std::ranges::equal(node.tokens, tokens) ? &node : nullptr;
}

PrefixCache::ByEvictable PrefixCache::KeyOf(Group& group) { return {group.evictable, group.number, &group}; }

void PrefixCache::Account(Node& node, int change) {
  Group& group = *node.tree->group;
  if (group.evictable > 0) by_evictable_.erase(KeyOf(group));
  group.evictable += static_cast<uint64_t>(change);
  evictable_ += static_cast<uint64_t>(change);
  if (group.evictable > 0) by_evictable_.insert(KeyOf(group));
}

void PrefixCache::UpdateLeaf(Node& node) {
  const bool is_leaf = node.pins == 0 && node.children.empty();
  if (is_leaf != node.is_leaf) SetLeaf(node, is_leaf);
}

void PrefixCache::SetLeaf(Node& node, bool is_leaf) {
  node.is_leaf = is_leaf;
  const std::pair<uint64_t, Node*> entry{node.last_used, &node};
  if (is_leaf) {
    node.tree->group->leaves.insert(entry);
    leaves_.insert(entry);
  } else {
    node.tree->group->leaves.erase(entry);
    leaves_.erase(entry);
  }
}

PrefixCache::Pin PrefixCache::MakePin(Node& node) {
  if (node.pins++ == 0) {
    pool_.MarkUsed(node.handle);
    Account(node, -1);
    UpdateLeaf(node);
  }
  return Pin(&node);
}

std::vector<PrefixCache::Pin> PrefixCache::Acquire(const Domain& domain, std::span<const TokenId> tokens, size_t most_pages) {
  const uint32_t page_tokens = pool_.layout().page_tokens();
  const size_t most = std::min<size_t>(most_pages, tokens.size() / page_tokens);
  std::vector<Pin> path;
  const auto found = trees_.find(TreeName(domain));
  if (found == trees_.end()) return path;
  IdentityChain chain(domain.key, pool_.layout());
  Node* parent = nullptr;
  for (size_t i = 0; i < most; ++i) {
    const std::span<const TokenId> page = tokens.subspan(i * page_tokens, page_tokens);
    Node* const node = Find(*found->second, parent, chain.Append(page), page);
    if (node == nullptr) break;
    path.push_back(MakePin(*node));
    parent = node;
  }
  return path;
}

#ifdef COFFERDAM_FAULTS
std::vector<PrefixCache::Pin> PrefixCache::AcquirePages(std::span<const PageId> pages) {
  std::vector<Pin> pins;
  for (const PageId page : pages) {
    const auto found = by_page_.find(page);
    if (found == by_page_.end()) break;
    pins.push_back(MakePin(*found->second));
  }
  return pins;
}
#endif

void PrefixCache::CountLookup(size_t most_pages, size_t found_pages) {
  counters_.looked_up_tokens += most_pages * pool_.layout().page_tokens();
  counters_.hit_tokens += found_pages * pool_.layout().page_tokens();
}

std::variant<PrefixCache::Pin, PageHandle> PrefixCache::Insert(const Domain& domain, const Pin* parent,
                                                               std::span<const TokenId> tokens, PageHandle handle,
                                                               uint64_t origin) {
  const Seal& seal = pool_.SealOf(handle);
  CD_CHECK(seal.tokens == pool_.layout().page_tokens() && tokens.size() == seal.tokens, "only whole pages are shared");
  Node* const before = parent == nullptr ? nullptr : parent->node_;
  if (before != nullptr && (before->tree == nullptr || before->tree->name != TreeName(domain))) return handle;
  Tree& tree = TreeOf(domain);
  auto& slot = tree.nodes[seal.identity];
  if (slot != nullptr) return handle;
  slot = std::make_unique<Node>();
  Node& node = *slot;
  node.identity = seal.identity;
  node.handle = std::move(handle);
  node.tokens.assign(tokens.begin(), tokens.end());
  node.origin = origin;
  node.tree = &tree;
  node.parent = before;
  node.pins = 1;
  if (before != nullptr) before->children.push_back(&node);
  by_page_.emplace(node.handle.page(), &node);
  index_.Insert(node.identity);
  ++counters_.inserted_pages;
  return Pin(&node);
}

void PrefixCache::Unpin(Pin pin, StepEpoch epoch) {
  Node& node = *std::exchange(pin.node_, nullptr);
  CD_CHECK(node.pins > 0, "I2: a pin is given back once");
  if (--node.pins > 0) return;
  if (node.tree == nullptr) {
    auto doomed = doomed_.extract(&node);
    return LetGo(std::move(doomed.mapped()), epoch);
  }
  pool_.MarkCached(node.handle);
  node.last_used = ++clock_;
  Account(node, +1);
  UpdateLeaf(node);
}

void PrefixCache::LetGo(std::unique_ptr<Node> node, StepEpoch epoch) {
  if (node->bad) {
    pool_.Quarantine(std::move(node->handle));
  } else {
    pool_.Release(std::move(node->handle), epoch);
  }
}

PrefixCache::Node& PrefixCache::NextToGo() {
  int looks = kMostLooks;
  for (const auto& [last_used, node] : leaves_) {
    if (--looks < 0) break;
    if (node->tree->group->evictable * by_evictable_.size() >= evictable_) return *node;
  }
  Group& largest = *std::get<Group*>(*by_evictable_.rbegin());
  CD_CHECK(!largest.leaves.empty(), "whoever pins a page pins all before it");
  return *largest.leaves.begin()->second;
}

uint64_t PrefixCache::Evict(uint64_t pages, StepEpoch epoch) {
  uint64_t evicted = 0;
  for (; evicted < pages && evictable_ > 0; ++evicted) Detach(NextToGo(), epoch);
  counters_.evicted_pages += evicted;
  return evicted;
}

uint64_t PrefixCache::Detach(Node& node, StepEpoch epoch) {
  if (node.parent != nullptr) {
    std::erase(node.parent->children, &node);
    UpdateLeaf(*node.parent);
  }
  uint64_t count = 0;
  std::vector<Node*> left{&node};
  while (!left.empty()) {
    Node& next = *left.back();
    left.pop_back();
    left.insert(left.end(), next.children.begin(), next.children.end());
    Tree& tree = *next.tree;
    if (next.pins == 0) Account(next, -1);
    if (next.is_leaf) SetLeaf(next, false);
    by_page_.erase(next.handle.page());
    index_.Erase(next.identity);
    auto own = tree.nodes.extract(next.identity);
    std::unique_ptr<Node> held = std::move(own.mapped());
    next.tree = nullptr;
    next.parent = nullptr;
    next.children.clear();
    ++count;
    if (next.pins == 0) {
      LetGo(std::move(held), epoch);
    } else {
      doomed_.emplace(&next, std::move(held));
    }
    if (tree.nodes.empty()) {
      const std::string name = tree.name;
      if (--tree.group->trees == 0) groups_.erase(GroupName(name));
      trees_.erase(name);
    }
  }
  return count;
}

void PrefixCache::Condemn(PageId page, StepEpoch epoch) {
  const auto found = by_page_.find(page);
  if (found == by_page_.end()) {
    for (auto& [node, owned] : doomed_) node->bad = node->bad || node->handle.page() == page;
    return;
  }
  found->second->bad = true;
  counters_.dropped_pages += Detach(*found->second, epoch);
}

uint64_t PrefixCache::DropOrigin(uint64_t origin, StepEpoch epoch) {
  uint64_t dropped = 0;
  for (auto next = by_page_.begin(); next != by_page_.end();) {
    if (next->second->origin != origin) {
      ++next;
      continue;
    }
    const PageId page = next->first;
    dropped += Detach(*next->second, epoch);  // others may go with it
    next = by_page_.upper_bound(page);
  }
  counters_.dropped_pages += dropped;
  return dropped;
}

uint64_t PrefixCache::Forget(const Domain& domain, std::span<const TokenId> tokens, StepEpoch epoch) {
  const auto found = trees_.find(TreeName(domain));
  const uint32_t page_tokens = pool_.layout().page_tokens();
  if (found == trees_.end() || tokens.size() < page_tokens) return 0;
  const std::span<const TokenId> page = tokens.first(page_tokens);
  Node* const first = Find(*found->second, nullptr, IdentityChain(domain.key, pool_.layout()).Append(page), page);
  const uint64_t dropped = first == nullptr ? 0 : Detach(*first, epoch);
  counters_.dropped_pages += dropped;
  return dropped;
}

void PrefixCache::Clear(StepEpoch epoch) {
  while (!by_page_.empty()) {
    Node* node = by_page_.begin()->second;
    CD_CHECK(node->pins == 0, "I2: a cache that goes is pinned by nobody");
    Detach(*node, epoch);
  }
}

const PageHandle* PrefixCache::NextPage(PageId from) const {
  const auto found = by_page_.lower_bound(from);
  return found == by_page_.end() ? nullptr : &found->second->handle;
}

void PrefixCache::CheckConsistency() const {
  std::map<const Group*, uint64_t> evictable;
  uint64_t nodes = 0, all = 0;
  for (const auto& [name, tree] : trees_) {
    for (const auto& [identity, node] : tree->nodes) {
      CD_CHECK(node->identity == identity && node->tree == tree.get() && node->handle.held(), "I2: a tree owns its pages");
      const PageState state = pool_.StateOf(node->handle.page());
      CD_CHECK(state == (node->pins > 0 ? PageState::kSealed : PageState::kCached), "I9: a page without a pin counts as cached");
      CD_CHECK(node->is_leaf == (node->pins == 0 && node->children.empty()), "the list of leaves is that of the tree");
      CD_CHECK(node->parent == nullptr || node->pins == 0 || node->parent->pins > 0, "whoever pins a page pins all before it");
      evictable[tree->group] += node->pins == 0 ? 1 : 0;
      all += node->pins == 0 ? 1 : 0;
      ++nodes;
    }
  }
  for (const auto& [group, count] : evictable) CD_CHECK(count == group->evictable, "I9: what can be evicted is what nobody pins");
  CD_CHECK(evictable.size() == groups_.size() && all == evictable_ && nodes == by_page_.size(),
           "I9: the running counts are those of the trees");
}

}  // namespace cofferdam::kv
